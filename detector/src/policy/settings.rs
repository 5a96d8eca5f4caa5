//! The keys that `defaults` and every rule have in common: reading, inheriting, and what contradicts what.

use std::ffi::OsString;
use std::time::Duration;

use super::decision::{Access, Backoff, Command, Decision, Mode, OnAbort, OnHung, StrategyChoice};
use super::error::{Position, Problems};
use super::reader::{self, Fields, Located};
use super::yaml::Node;

pub(super) const KEYS: [&str; 9] =
    ["mode", "strategy", "command", "commandTimeout", "access", "onHung", "onAbort", "hungAfter", "backoff"];

/// In the design, not in this version: refused, so that nobody relies on what does not happen.
const UNBUILT_STRATEGIES: [&str; 3] = ["csi", "systemd", "fstab"];

/// What holds where the file says nothing. Observing harms nobody.
pub(super) const BUILTIN: Decision = Decision {
    rule: None,
    mode: Mode::Observe,
    strategy: StrategyChoice::Auto,
    access: Access::Any,
    on_hung: OnHung::Report,
    on_abort: OnAbort::Report,
    // A disk or a network in trouble recovers within this time more often than not.
    hung_after: Duration::from_secs(30),
    backoff: Backoff {
        initial: Duration::from_millis(200),
        max: Duration::from_secs(30),
        give_up_after: Duration::from_secs(15 * 60),
    },
};

/// A command that mounts a file system is done, or stuck, by then.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strategy {
    Auto,
    Rebind,
    Respawn,
    Command,
}

const MODES: [(&str, Mode); 3] = [("observe", Mode::Observe), ("heal", Mode::Heal), ("ignore", Mode::Ignore)];
const STRATEGIES: [(&str, Strategy); 4] = [
    ("auto", Strategy::Auto),
    ("rebind", Strategy::Rebind),
    ("respawn", Strategy::Respawn),
    ("command", Strategy::Command),
];
const ACCESS: [(&str, Access); 2] = [("any", Access::Any), ("readOnly", Access::ReadOnly)];
const ON_HUNG: [(&str, OnHung); 2] = [("report", OnHung::Report), ("abort", OnHung::Abort)];
const ON_ABORT: [(&str, OnAbort); 2] = [("report", OnAbort::Report), ("heal", OnAbort::Heal)];

/// The value of one key.
enum Setting<T> {
    Absent,
    /// There, but wrong, which was already complained about.
    Wrong,
    Given(Located<T>),
}

/// The settings of one mapping.
pub(super) struct Settings {
    mode: Setting<Mode>,
    strategy: Setting<Strategy>,
    command: Setting<Vec<OsString>>,
    command_timeout: Setting<Duration>,
    access: Setting<Access>,
    on_hung: Setting<OnHung>,
    on_abort: Setting<OnAbort>,
    hung_after: Setting<Duration>,
    backoff: Option<BackoffSettings>,
}

struct BackoffSettings {
    at: Position,
    initial: Setting<Duration>,
    max: Setting<Duration>,
    give_up_after: Setting<Duration>,
}

impl<T: Clone> Setting<T> {
    fn of(fields: &Fields<'_>, key: &str, read: impl FnOnce(&Node) -> Option<Located<T>>) -> Self {
        match fields.get(key) {
            None => Self::Absent,
            Some(node) => read(node).map_or(Self::Wrong, Self::Given),
        }
    }

    fn or(&self, inherited: T) -> T {
        match self {
            Self::Given(Located { value, .. }) => value.clone(),
            Self::Absent | Self::Wrong => inherited,
        }
    }

    const fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong)
    }

    const fn position(&self) -> Option<Position> {
        match self {
            Self::Given(Located { at, .. }) => Some(*at),
            Self::Absent | Self::Wrong => None,
        }
    }
}

impl Settings {
    pub fn read(fields: &Fields<'_>, problems: &mut Problems) -> Self {
        Self {
            mode: Setting::of(fields, "mode", |node| reader::word("mode", node, &MODES, &[], problems)),
            strategy: Setting::of(fields, "strategy", |node| {
                reader::word("strategy", node, &STRATEGIES, &UNBUILT_STRATEGIES, problems)
            }),
            command: Setting::of(fields, "command", |node| reader::arguments("command", node, problems)),
            command_timeout: Setting::of(fields, "commandTimeout", |node| {
                reader::duration("commandTimeout", node, problems)
            }),
            access: Setting::of(fields, "access", |node| reader::word("access", node, &ACCESS, &[], problems)),
            on_hung: Setting::of(fields, "onHung", |node| reader::word("onHung", node, &ON_HUNG, &[], problems)),
            on_abort: Setting::of(fields, "onAbort", |node| reader::word("onAbort", node, &ON_ABORT, &[], problems)),
            hung_after: Setting::of(fields, "hungAfter", |node| reader::duration("hungAfter", node, problems)),
            backoff: fields.get("backoff").and_then(|node| BackoffSettings::read(node, problems)),
        }
    }

    /// What holds, `inherited` filling the gaps. `at` is where the mapping stands.
    pub fn resolve(&self, inherited: &Decision, at: Position, problems: &mut Problems) -> Decision {
        Decision {
            rule: inherited.rule,
            mode: self.mode.or(inherited.mode),
            strategy: self.strategy(&inherited.strategy, at, problems),
            access: self.access.or(inherited.access),
            on_hung: self.on_hung.or(inherited.on_hung),
            on_abort: self.on_abort.or(inherited.on_abort),
            hung_after: self.hung_after.or(inherited.hung_after),
            backoff: match &self.backoff {
                Some(backoff) => backoff.resolve(inherited.backoff, problems),
                None => inherited.backoff,
            },
        }
    }

    fn strategy(&self, inherited: &StrategyChoice, at: Position, problems: &mut Problems) -> StrategyChoice {
        if self.strategy.is_wrong() || self.command.is_wrong() {
            return inherited.clone();
        }
        let strategy = match self.strategy.or(Strategy::of(inherited)) {
            Strategy::Command => return self.command(inherited, at, problems),
            Strategy::Auto => StrategyChoice::Auto,
            Strategy::Rebind => StrategyChoice::Rebind,
            Strategy::Respawn => StrategyChoice::Respawn,
        };
        for (key, position) in
            [("command", self.command.position()), ("commandTimeout", self.command_timeout.position())]
        {
            if let Some(position) = position {
                problems.add(position, format!("{key} has no effect here: add strategy: command, or take it out"));
            }
        }
        strategy
    }

    fn command(&self, inherited: &StrategyChoice, at: Position, problems: &mut Problems) -> StrategyChoice {
        let (argv, timeout) = match inherited {
            StrategyChoice::Command(Command { argv, timeout }) => (argv.clone(), *timeout),
            StrategyChoice::Auto | StrategyChoice::Rebind | StrategyChoice::Respawn => (Vec::new(), COMMAND_TIMEOUT),
        };
        let argv = self.command.or(argv);
        if argv.is_empty() {
            let at = self.strategy.position().unwrap_or(at);
            problems.add(at, "strategy: command needs a command: [program, argument, …]");
        }
        StrategyChoice::Command(Command { argv, timeout: self.command_timeout.or(timeout) })
    }
}

impl Strategy {
    const fn of(choice: &StrategyChoice) -> Self {
        match choice {
            StrategyChoice::Auto => Self::Auto,
            StrategyChoice::Rebind => Self::Rebind,
            StrategyChoice::Respawn => Self::Respawn,
            StrategyChoice::Command(_) => Self::Command,
        }
    }
}

impl BackoffSettings {
    fn read(node: &Node, problems: &mut Problems) -> Option<Self> {
        let fields = Fields::of(node, "backoff", &["initial", "max", "giveUpAfter"], problems)?;
        let mut duration = |key: &str| Setting::of(&fields, key, |node| reader::duration(key, node, problems));
        Some(Self {
            at: node.at,
            initial: duration("initial"),
            max: duration("max"),
            give_up_after: duration("giveUpAfter"),
        })
    }

    fn resolve(&self, inherited: Backoff, problems: &mut Problems) -> Backoff {
        let backoff = Backoff {
            initial: self.initial.or(inherited.initial),
            max: self.max.or(inherited.max),
            give_up_after: self.give_up_after.or(inherited.give_up_after),
        };
        if self.initial.is_wrong() || self.max.is_wrong() || self.give_up_after.is_wrong() {
            return backoff;
        }
        let Backoff { initial, max, give_up_after } = backoff;
        let at = |setting: &Setting<Duration>| setting.position().unwrap_or(self.at);
        if initial > max {
            problems.add(at(&self.initial), format!("backoff: initial ({initial:?}) is longer than max ({max:?})"));
        }
        if give_up_after < initial {
            let message = format!(
                "backoff: giveUpAfter ({give_up_after:?}) is shorter than initial ({initial:?}), so no second attempt would follow"
            );
            problems.add(at(&self.give_up_after), message);
        }
        backoff
    }
}
