use std::ffi::OsString;

use crate::model::{DeviceNumber, Mount, NamespaceId};

/// In the environment of what is launched: the mount namespace for which it serves, although it lives in another one. An
/// agent that is started later knows it by that.
pub const LAUNCHED_FOR: &str = "FUSE_DETECTOR_NAMESPACE";

/// Beside it: the dead connections for which it was launched, as `DEVICE[,DEVICE…]`, and where the kernel has unique mount ids
/// `@ID`, the newest one in that namespace at the time.
pub const REPLACES: &str = "FUSE_DETECTOR_REPLACES";

/// For whom a daemon was launched. No process outlives the kernel that gave the numbers, so they need not say of which boot
/// they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    namespace: NamespaceId,
    connections: Vec<DeviceNumber>,
    newest: Option<u64>,
}

impl Mark {
    /// `newest` was asked for before `connections` were found to be mounted.
    pub(crate) fn new(namespace: NamespaceId, connections: Vec<DeviceNumber>, newest: Option<u64>) -> Self {
        Self { namespace, connections, newest }
    }

    /// That of an environment, if it is for this namespace.
    pub fn of(env: &[OsString], namespace: NamespaceId) -> Option<Self> {
        let launched_for: u64 = value(env, LAUNCHED_FOR)?.parse().ok()?;
        let (connections, newest) = match value(env, REPLACES)?.split_once('@') {
            Some((connections, newest)) => (connections, Some(newest.parse().ok()?)),
            None => (value(env, REPLACES)?, None),
        };
        let number = |text: &str| text.parse().ok().map(DeviceNumber::from_kernel);
        let connections = connections.split(',').map(number).collect::<Option<_>>()?;
        (launched_for == namespace.0).then_some(Self { namespace, connections, newest })
    }

    /// Whether what has this environment was launched for the namespace, be it by an agent that said no more than that.
    pub(crate) fn is_launched_for(env: &[OsString], namespace: NamespaceId) -> bool {
        value(env, LAUNCHED_FOR).is_some_and(|value| value.parse() == Ok(namespace.0))
    }

    /// What is put into the environment.
    pub(crate) fn variables(&self) -> [(&'static str, String); 2] {
        let Self { namespace, connections, newest } = self;
        let numbers: Vec<_> = connections.iter().map(|device| device.to_kernel().to_string()).collect();
        let newest = newest.map(|id| format!("@{id}")).unwrap_or_default();
        [(LAUNCHED_FOR, namespace.0.to_string()), (REPLACES, format!("{}{newest}", numbers.join(",")))]
    }

    /// Whether an entry of an environment is a part of a mark.
    pub(crate) fn is_part(entry: &OsString) -> bool {
        [LAUNCHED_FOR, REPLACES].iter().any(|name| {
            entry.as_encoded_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
        })
    }

    /// Whether it was launched for the dead connection that has these mounts.
    ///
    /// Unique ids grow with time, so a mount with one up to the newest was there when the daemon was launched; and it has kept
    /// its device since, which was the dead connection's then. Without unique ids the number alone has to do; who takes a daemon
    /// for a replacement compares type and source besides.
    pub fn is_for(&self, dead: &[Mount]) -> bool {
        let is_old = |mount: &Mount| match self.newest {
            Some(newest) => mount.unique_id.is_some_and(|id| id <= newest),
            None => true,
        };
        dead.iter().any(|mount| self.connections.contains(&mount.device) && is_old(mount))
    }

    /// Whether the connection of this number is one that it was launched for.
    pub(super) fn names(&self, device: DeviceNumber) -> bool {
        self.connections.contains(&device)
    }

    /// Whether it was launched for one connection only.
    pub(super) fn is_for_one(&self) -> bool {
        self.connections.len() == 1
    }
}

fn value<'e>(env: &'e [OsString], name: &str) -> Option<&'e str> {
    env.iter().find_map(|entry| entry.to_str()?.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MountFlags, MountId, Propagation};

    const HERE: NamespaceId = NamespaceId(4_026_531_841);

    fn device(minor: u32) -> DeviceNumber {
        DeviceNumber { major: 0, minor }
    }

    fn mount(minor: u32, unique_id: Option<u64>) -> Mount {
        Mount {
            namespace: HERE,
            id: MountId(7),
            unique_id,
            parent: MountId(1),
            device: device(minor),
            root: "/".into(),
            root_deleted: false,
            mount_point: "/m".into(),
            flags: MountFlags::default(),
            propagation: Propagation::default(),
            fs_type: "fuse".into(),
            source: "src".into(),
            super_options: "".into(),
        }
    }

    fn environment(mark: &Mark) -> Vec<OsString> {
        let ours = mark.variables().map(|(name, value)| OsString::from(format!("{name}={value}")));
        [OsString::from("PATH=/bin")].into_iter().chain(ours).collect()
    }

    #[test]
    fn it_is_read_as_it_was_written_and_only_where_it_is_meant() {
        for newest in [None, Some(u64::MAX)] {
            let mark = Mark::new(HERE, vec![device(41), DeviceNumber { major: 8, minor: 300 }], newest);
            let env = environment(&mark);
            assert_eq!(Mark::of(&env, HERE), Some(mark));
            assert_eq!(Mark::of(&env, NamespaceId(1)), None);
            assert_eq!(env.iter().filter(|entry| Mark::is_part(entry)).count(), 2);
        }
        for value in ["", "x", "41,", "41@", "41@x", "@5"] {
            let env = [format!("{LAUNCHED_FOR}={HERE}"), format!("{REPLACES}={value}")].map(OsString::from);
            assert_eq!(Mark::of(&env, HERE), None, "{value}");
        }
    }

    #[test]
    fn a_number_that_is_used_again_is_another_connection() {
        let mark = Mark::new(HERE, vec![device(41), device(42)], Some(100));
        assert!(mark.is_for(&[mount(42, Some(100))]));
        assert!(mark.is_for(&[mount(41, Some(130)), mount(41, Some(7))]), "a bind that was made since");
        assert!(!mark.is_for(&[mount(41, Some(101))]));
        assert!(!mark.is_for(&[mount(41, None)]));
        assert!(!mark.is_for(&[mount(43, Some(1))]));
        let without_ids = Mark::new(HERE, vec![device(41)], None);
        assert!(without_ids.is_for(&[mount(41, None)]) && !without_ids.is_for(&[mount(42, None)]));
    }
}
