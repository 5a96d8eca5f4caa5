//! What can be learnt about FUSE mounts, connections and daemons without a kernel program and without touching any
//! FUSE file system.

pub mod mountinfo;
