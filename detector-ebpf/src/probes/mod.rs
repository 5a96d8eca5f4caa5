//! One file per family of tracepoints. Each program is two entry points over one body: `<tracepoint>` is typed by BTF,
//! `<tracepoint>_raw` is not.

pub mod abort;
pub mod call;
pub mod process;
pub mod request;
