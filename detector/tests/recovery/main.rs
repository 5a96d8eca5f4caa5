//! Recovery and workers on real mounts, each test in a mount namespace of its own. Needs root, `/dev/fuse` and bindfs.

mod brought;
mod measure;
mod probes;
mod rebind;
mod stage;
