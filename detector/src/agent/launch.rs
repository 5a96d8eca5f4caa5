//! How a dead daemon is started again, and whether the agent may.

use crate::model::NamespaceId;
use crate::mounts::{CgroupMembership, DaemonRecord};
use crate::recovery::{self, LaunchSpec};

/// What was taken down of a daemon while it ran.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// How it was started.
    pub spec: LaunchSpec,
    /// It belongs to a container, whose manager starts it again.
    pub in_container: bool,
    /// It was started in the mount namespace that the agent heals.
    pub in_own_namespace: bool,
}

impl Launch {
    pub fn of(record: &DaemonRecord, own: NamespaceId) -> Self {
        Self {
            spec: spec(record),
            in_container: record.cgroups.iter().any(is_containers),
            in_own_namespace: record.mount_namespace == own,
        }
    }
}

/// What of the record it takes to start the daemon again.
fn spec(record: &DaemonRecord) -> LaunchSpec {
    let cgroups = record.cgroups.iter().map(|membership| recovery::CgroupMembership {
        controllers: membership.controllers.join(","),
        path: membership.path.clone(),
    });
    LaunchSpec {
        exe: record.exe.clone(),
        argv: record.argv.clone(),
        env: record.env.clone(),
        cwd: record.cwd.clone(),
        uid: record.credentials.uid,
        gid: record.credentials.gid,
        groups: record.credentials.groups.clone(),
        cgroups: cgroups.collect(),
        oom_score_adj: Some(record.oom_score_adj),
    }
}

/// Container managers name a container's cgroup after its id, 64 hexadecimal digits (containerd's cgroupfs driver), with
/// a prefix and `.scope` around it under systemd (`cri-containerd-<id>.scope`, `docker-<id>.scope`, `libpod-<id>.scope`).
fn is_containers(membership: &CgroupMembership) -> bool {
    membership.path.iter().any(|component| {
        let name = component.as_encoded_bytes();
        let name = name.strip_suffix(b".scope").unwrap_or(name);
        let id = name.rsplit(|byte| *byte == b'-').next().unwrap_or(name);
        id.len() == 64 && id.iter().all(u8::is_ascii_hexdigit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_cgroup(path: &str) -> bool {
        is_containers(&CgroupMembership { hierarchy: 0, controllers: vec![], path: path.into() })
    }

    #[test]
    fn containers_are_known_by_their_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        assert!(in_cgroup(&format!("/kubepods/besteffort/pod1234/{id}")));
        assert!(in_cgroup(&format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope")));
        assert!(in_cgroup(&format!("/../../pod1234/{id}")));
        assert!(!in_cgroup("/"));
        assert!(!in_cgroup("/system.slice/rclone.service"));
        assert!(!in_cgroup("/user.slice/user-1000.slice/session-3.scope"));
    }
}
