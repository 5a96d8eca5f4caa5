//! Kernel programs.
