//! What the agent tells: the log, the metrics, and HTTP.

pub mod http;
pub mod log;
pub mod metrics;
pub mod query;
mod reference;
pub mod sink;
pub mod status;

pub use metrics::Metrics;
pub use reference::reference;
