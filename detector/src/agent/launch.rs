//! How a dead daemon is started again, and whether the agent may.

use std::path::Path;

use crate::model::NamespaceId;
use crate::mounts::{CgroupMembership, DaemonRecord};
use crate::recovery::{self, LaunchSpec, Mark};

/// What was taken down of a daemon while it ran.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// How it was started.
    pub spec: LaunchSpec,
    /// It belongs to a container, whose manager starts it again.
    pub in_container: bool,
    /// It was started in the mount namespace that the agent heals.
    pub in_own_namespace: bool,
    /// A namespace of its own, other than the mount namespace, that a daemon started by the agent would not have.
    pub foreign_namespace: Option<&'static str>,
    /// Capabilities that it had, and no process of the agent can have.
    pub out_of_reach: u64,
    /// An agent, perhaps one that ran before this one, launched it.
    pub ours: bool,
    /// For whom.
    pub mark: Option<Mark>,
}

impl Launch {
    pub fn of(record: &DaemonRecord, own: NamespaceId) -> Self {
        Self {
            spec: spec(record),
            in_container: record.cgroups.iter().any(is_containers),
            in_own_namespace: record.root == Path::new("/")
                && (record.mount_namespace == own || is_launched_for(record, own)),
            foreign_namespace: record.foreign_namespaces.first().copied(),
            out_of_reach: record.out_of_reach,
            ours: Mark::is_launched_for(&record.env, own),
            mark: Mark::of(&record.env, own),
        }
    }
}

impl Launch {
    /// The memory cgroup that it was in, as `/proc/PID/cgroup` shows it.
    pub fn memory_cgroup(&self) -> Option<String> {
        let of_memory = |controllers: &str| controllers.split(',').any(|controller| controller == "memory");
        let cgroups = &self.spec.cgroups;
        // Version 2 has one hierarchy for all, without a name.
        let version_1 = cgroups.iter().find(|membership| of_memory(&membership.controllers));
        let found = version_1.or_else(|| cgroups.iter().find(|membership| membership.controllers.is_empty()));
        found.map(|membership| crate::text::printable(membership.path.as_os_str()))
    }
}

/// The agent, perhaps one that ran before this one, launched it to serve there, in a mount namespace made for it.
pub(super) fn is_launched_for(record: &DaemonRecord, own: NamespaceId) -> bool {
    record.mount_namespace != own && Mark::is_launched_for(&record.env, own)
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
        env: record.env.iter().filter(|entry| !Mark::is_part(entry)).cloned().collect(),
        cwd: record.cwd.clone(),
        uid: record.credentials.uid,
        gid: record.credentials.gid,
        groups: record.credentials.groups.clone(),
        cgroups: cgroups.collect(),
        oom_score_adj: Some(record.oom_score_adj),
        umask: record.umask,
        limits: record.limits.clone(),
        privileges: Some(record.privileges),
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
    fn the_memory_cgroup_is_that_of_version_1_if_memory_is_controlled_there() {
        let membership = |controllers: &str, path: &str| recovery::CgroupMembership {
            controllers: controllers.to_owned(),
            path: path.into(),
        };
        let of = |cgroups| {
            let spec = LaunchSpec {
                exe: "/bin/d".into(),
                argv: vec![],
                env: vec![],
                cwd: "/".into(),
                uid: 0,
                gid: 0,
                groups: vec![],
                cgroups,
                oom_score_adj: None,
                umask: None,
                limits: vec![],
                privileges: None,
            };
            let launch = Launch {
                spec,
                in_container: false,
                in_own_namespace: true,
                foreign_namespace: None,
                out_of_reach: 0,
                ours: false,
                mark: None,
            };
            launch.memory_cgroup()
        };
        let both = vec![membership("", "/unified"), membership("cpu,cpuacct", "/cpu"), membership("memory", "/mem\n")];
        assert_eq!(of(both).as_deref(), Some("/mem\\n"));
        assert_eq!(of(vec![membership("cpu", "/cpu"), membership("", "/unified")]).as_deref(), Some("/unified"));
        assert_eq!(of(vec![membership("name=systemd", "/system")]), None);
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
