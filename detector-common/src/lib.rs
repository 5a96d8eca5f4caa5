//! What crosses the kernel boundary.
#![no_std]
