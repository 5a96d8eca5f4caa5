//! What the scenarios on real FUSE daemons and mount namespaces are written with, and the protocol that commands the
//! file system whose faults can be chosen while it runs (`steerfs`).

pub mod steer;
