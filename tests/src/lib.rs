//! Scenario harness.
