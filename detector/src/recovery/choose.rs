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
pub const fn choose(configured: StrategyChoice, facts: &Facts) -> Result<(Strategy, &'static str), NoStrategy> {
    let &Facts { daemon_remembered, daemon_in_container, daemon_in_own_namespace, on_block_device, command_given } =
        facts;
    match configured {
        StrategyChoice::Rebind => Ok((Strategy::Rebind, "the policy says so")),
        StrategyChoice::Command if command_given => Ok((Strategy::Command, "the policy says so")),
        StrategyChoice::Command => Err(NoStrategy::NoCommand),
        StrategyChoice::Respawn if on_block_device => Err(NoStrategy::BlockDevice),
        StrategyChoice::Respawn if !daemon_remembered => Err(NoStrategy::DaemonUnknown),
        StrategyChoice::Respawn if daemon_in_container => Err(NoStrategy::InContainer),
        StrategyChoice::Respawn if !daemon_in_own_namespace => Err(NoStrategy::ForeignNamespace),
        StrategyChoice::Respawn => Ok((Strategy::Respawn, "the policy says so")),
        StrategyChoice::Auto if on_block_device => {
            Ok((Strategy::Rebind, "the dead file system keeps its block device, so no other daemon can have it"))
        }
        StrategyChoice::Auto if !daemon_remembered => {
            Ok((Strategy::Rebind, "the daemon was not seen alive, so how to start it is not known"))
        }
        StrategyChoice::Auto if daemon_in_container => {
            Ok((Strategy::Rebind, "the daemon belongs to a container, whose manager starts it again"))
        }
        StrategyChoice::Auto if !daemon_in_own_namespace => {
            Ok((Strategy::Rebind, "the daemon lived in another mount namespace"))
        }
        StrategyChoice::Auto => {
            Ok((Strategy::Respawn, "the daemon was seen alive on this host, outside any container"))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use proptest::strategy::Strategy as _;

    use super::*;

    fn facts() -> impl proptest::strategy::Strategy<Value = Facts> {
        any::<[bool; 5]>().prop_map(|[remembered, container, own, device, command]| Facts {
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
            let (strategy, why) = choose(StrategyChoice::Auto, &facts).unwrap();
            prop_assert!(!why.is_empty());
            let Facts { daemon_remembered, daemon_in_container, daemon_in_own_namespace, on_block_device, .. } = facts;
            let may_start = daemon_remembered && !daemon_in_container && daemon_in_own_namespace && !on_block_device;
            prop_assert_eq!(strategy, if may_start { Strategy::Respawn } else { Strategy::Rebind });
        }

        #[test]
        fn respawn_is_an_error_exactly_where_auto_would_not_take_it(facts in facts()) {
            let auto = choose(StrategyChoice::Auto, &facts).unwrap().0;
            prop_assert_eq!(choose(StrategyChoice::Respawn, &facts).is_ok(), auto == Strategy::Respawn);
        }
    }

    #[test]
    fn a_command_must_be_there() {
        let facts = Facts::default();
        assert_eq!(choose(StrategyChoice::Command, &facts), Err(NoStrategy::NoCommand));
        let facts = Facts { command_given: true, ..facts };
        assert_eq!(choose(StrategyChoice::Command, &facts).unwrap().0, Strategy::Command);
    }
}
