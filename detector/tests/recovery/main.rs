//! Recovery and workers on real mounts, each test in a mount namespace of its own. Needs root, `/dev/fuse` and bindfs.

#![expect(clippy::unwrap_used, reason = "a test that can't set its stage up fails")]

mod brought;
mod measure;
mod probes;
mod rebind;
mod several;
mod shed;
mod split;
mod stage;
