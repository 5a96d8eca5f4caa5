use serde::{Deserialize, Serialize};

/// What the policy asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StrategyChoice {
    /// The agent decides by what it knows of the daemon.
    Auto,
    /// Somebody else brings the replacement.
    Rebind,
    /// The daemon is started again as it was.
    Respawn,
    /// The policy's command brings the replacement.
    Command,
}

/// Who brings the replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Somebody else; the agent re-attaches every mount.
    Rebind,
    /// The agent starts the daemon again.
    Respawn,
    /// The policy's command.
    Command,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rebind, Self::Respawn, Self::Command];

    /// Its name in the policy, in JSON and in the metrics' label `strategy`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rebind => "rebind",
            Self::Respawn => "respawn",
            Self::Command => "command",
        }
    }
}

/// What is known when a strategy is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// How the daemon was started is remembered.
    pub daemon_remembered: bool,
    /// The daemon's cgroup is a container's or a Kubernetes pod's: whoever runs it starts it again.
    pub daemon_in_container: bool,
    /// The daemon lived in the agent's own mount namespace, so its paths mean the same here.
    pub daemon_in_own_namespace: bool,
    /// The file system is on a block device (`fuseblk`). As long as a dead one is mounted anywhere, mounting the device
    /// again gives that very one (`get_tree_bdev` in fs/super.c), and the new daemon none.
    pub on_block_device: bool,
    /// A namespace of the daemon, other than the mount namespace, that is not the agent's: `net`, …
    pub daemon_namespace: Option<&'static str>,
    /// The capabilities that the daemon had and no process of the agent can have.
    pub daemon_out_of_reach: u64,
    /// The policy names a command.
    pub command_given: bool,
}

/// Why the configured strategy can't be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoStrategy {
    /// The daemon started before the agent and was dead when the agent looked.
    #[error("respawn: the daemon was not seen alive, so how to start it is not known")]
    DaemonUnknown,
    /// Its paths mean something else in the agent's namespace.
    #[error("respawn: the daemon lived in another mount namespace than the agent's")]
    ForeignNamespace,
    /// Starting it beside its container would break what the container's manager knows.
    #[error("respawn: the daemon belongs to a container, whose manager starts it again; use rebind")]
    InContainer,
    /// It would see other addresses, processes or users than the one before.
    #[error(
        "respawn: the daemon lived in another {0} namespace than the agent's; use rebind, or a command that enters it"
    )]
    ForeignOther(&'static str),
    /// It could do less than the one before.
    #[error("respawn: the daemon had {}, which the agent's unit withholds: add it to its CapabilityBoundingSet", names(*.0))]
    OutOfReach(u64),
    /// There can be no second file system on the device beside the dead one.
    #[error("respawn: the dead file system keeps its block device; unmount it everywhere, then start the daemon")]
    BlockDevice,
    /// The policy's rule has no command.
    #[error("command: the policy names no command")]
    NoCommand,
}

/// The strategy for a dead connection, and why it was chosen.
///
/// # Errors
/// The policy asks for one that can't be carried out. `auto` always finds one: `rebind` needs nothing.
pub fn choose(configured: StrategyChoice, facts: Facts) -> Result<(Strategy, String), NoStrategy> {
    let asked_for = "the policy says so".to_owned();
    match (configured, no_respawn(facts)) {
        (StrategyChoice::Rebind, _) => Ok((Strategy::Rebind, asked_for)),
        (StrategyChoice::Command, _) if facts.command_given => Ok((Strategy::Command, asked_for)),
        (StrategyChoice::Command, _) => Err(NoStrategy::NoCommand),
        (StrategyChoice::Respawn, None) => Ok((Strategy::Respawn, asked_for)),
        (StrategyChoice::Respawn, Some(why)) => Err(why),
        (StrategyChoice::Auto, None) => {
            Ok((Strategy::Respawn, "the daemon was seen alive on this host, outside any container".to_owned()))
        }
        (StrategyChoice::Auto, Some(why)) => Ok((Strategy::Rebind, why.to_string())),
    }
}

/// Why the daemon can't be started again as it was.
const fn no_respawn(facts: Facts) -> Option<NoStrategy> {
    match facts {
        Facts { on_block_device: true, .. } => Some(NoStrategy::BlockDevice),
        Facts { daemon_remembered: false, .. } => Some(NoStrategy::DaemonUnknown),
        Facts { daemon_in_container: true, .. } => Some(NoStrategy::InContainer),
        Facts { daemon_in_own_namespace: false, .. } => Some(NoStrategy::ForeignNamespace),
        Facts { daemon_namespace: Some(kind), .. } => Some(NoStrategy::ForeignOther(kind)),
        Facts { daemon_out_of_reach: 0, .. } => None,
        Facts { daemon_out_of_reach, .. } => Some(NoStrategy::OutOfReach(daemon_out_of_reach)),
    }
}

/// By their number (include/uapi/linux/capability.h).
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

fn names(set: u64) -> String {
    let held = (0..u64::BITS).filter(|number| set >> number & 1 == 1);
    let name = |number: u32| match CAPABILITIES.get(usize::try_from(number).unwrap_or(usize::MAX)) {
        Some(name) => format!("CAP_{name}"),
        None => format!("capability {number}"),
    };
    held.map(name).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use proptest::strategy::Strategy as _;

    use super::*;

    fn facts() -> impl proptest::strategy::Strategy<Value = Facts> {
        (any::<[bool; 6]>(), 0_u64..3).prop_map(|([remembered, container, own, device, command, net], lacking)| Facts {
            daemon_namespace: net.then_some("net"),
            daemon_out_of_reach: lacking,
            daemon_remembered: remembered,
            daemon_in_container: container,
            daemon_in_own_namespace: own,
            on_block_device: device,
            command_given: command,
        })
    }

    proptest! {
        #[test]
        fn auto_always_finds_one_and_never_starts_a_containers_daemon(facts in facts()) {
            let (strategy, why) = choose(StrategyChoice::Auto, facts).unwrap();
            prop_assert!(!why.is_empty());
            let Facts { daemon_remembered, daemon_in_container, daemon_in_own_namespace, on_block_device, .. } = facts;
            let faithfully = facts.daemon_namespace.is_none() && facts.daemon_out_of_reach == 0;
            let may_start =
                daemon_remembered && !daemon_in_container && daemon_in_own_namespace && !on_block_device && faithfully;
            prop_assert_eq!(strategy, if may_start { Strategy::Respawn } else { Strategy::Rebind });
        }

        #[test]
        fn respawn_is_an_error_exactly_where_auto_would_not_take_it(facts in facts()) {
            let auto = choose(StrategyChoice::Auto, facts).unwrap().0;
            prop_assert_eq!(choose(StrategyChoice::Respawn, facts).is_ok(), auto == Strategy::Respawn);
        }
    }

    #[test]
    fn what_the_agent_lacks_is_named() {
        let facts = Facts { daemon_remembered: true, daemon_in_own_namespace: true, ..Facts::default() };
        let why =
            choose(StrategyChoice::Respawn, Facts { daemon_out_of_reach: 1 << 12 | 1 << 63, ..facts }).unwrap_err();
        assert!(why.to_string().contains("had CAP_NET_ADMIN capability 63, which"), "{why}");
        let why = choose(StrategyChoice::Respawn, Facts { daemon_namespace: Some("net"), ..facts }).unwrap_err();
        assert!(why.to_string().contains("another net namespace"), "{why}");
    }

    #[test]
    fn a_command_must_be_there() {
        let facts = Facts::default();
        assert_eq!(choose(StrategyChoice::Command, facts), Err(NoStrategy::NoCommand));
        let facts = Facts { command_given: true, ..facts };
        assert_eq!(choose(StrategyChoice::Command, facts).unwrap().0, Strategy::Command);
    }
}
