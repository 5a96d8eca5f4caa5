//! The machine against a model of the kernel: whatever happens, told by whichever sources there are, with whatever
//! delays, in the end the machine says what is true, and never says that a living connection is dead.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::{AbortCall, Boottime, ConnectionId, Daemon, DeviceNumber, ExitStatus, Process, Reason, Signal};

const ADMIN: Process = Process { pid: 77, comm: None };
const FIRST_DAEMON: u32 = 100;
const HOLDER: u32 = 50;

/// What happens to the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Kill,
    ExitWithoutUnmounting(u8),
    /// Close the device, unmount everything, exit: libfuse.
    Leave,
    Abort,
    Unmount,
    UnmountLazilyWhileInUse,
    LastUserCloses,
    HandOver,
    ChildKeepsDescriptor,
    HolderEnds,
    DaemonStops,
    DaemonContinues,
    ApplicationFails,
}

/// What happens in consequence.
#[derive(Debug)]
enum Event {
    Act(Act),
    End(u32, DaemonEnd),
    Tell(Input),
    LookAtMounts,
    Probe,
    FindHolders,
    Timer(Timer, u64),
}

/// Which of them tell, of those that need privileges or a newer kernel.
#[derive(Debug, Clone, Copy)]
struct Sources {
    hooks: bool,
    fanotify: bool,
    status_by_pidfd: bool,
    requests_in_flight: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Channel {
    Hooks,
    Pidfd,
    Fanotify,
    Answers,
}

struct World {
    machine: Machine,
    sources: Sources,
    delays: Vec<u64>,
    drawn: usize,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    last_told: HashMap<Channel, u64>,
    armed: HashMap<Timer, u64>,
    connected: bool,
    daemons: BTreeSet<u32>,
    holder: bool,
    holder_watched: bool,
    stopped: bool,
    mounts: usize,
    in_use: bool,
    superblock: bool,
    /// What disconnected it, unless that was a late consequence.
    killed_by: Option<Act>,
    /// A signal outranks an abort, even one that came first.
    signalled: bool,
    told: Vec<Verdict>,
}

impl World {
    fn new(sources: Sources, delays: Vec<u64>) -> Self {
        let id = ConnectionId { device: DeviceNumber { major: 0, minor: 45 }, epoch: 1 };
        let mut world = Self {
            machine: Machine::new(id, Origin::Seen),
            sources,
            delays,
            drawn: 0,
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            last_told: HashMap::new(),
            armed: HashMap::new(),
            connected: true,
            daemons: BTreeSet::from([FIRST_DAEMON]),
            holder: false,
            holder_watched: false,
            stopped: false,
            mounts: 1,
            in_use: false,
            superblock: true,
            killed_by: None,
            signalled: false,
            told: Vec::new(),
        };
        world.give(Input::Initialised);
        world.give(Input::DaemonSeen(Daemon { pid: FIRST_DAEMON, comm: None, alive: true }));
        world.give(Input::Mounts { count: 1, control: true });
        world
    }

    fn delay(&mut self) -> u64 {
        self.drawn += 1;
        self.delays[self.drawn % self.delays.len()]
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((time, self.sequence), event);
    }

    fn later(&mut self, event: Event) {
        let time = self.now + self.delay();
        self.at(time, event);
    }

    /// One source tells in order; two sources don't.
    fn tell(&mut self, channel: Channel, input: Input) {
        let time = (self.now + self.delay()).max(self.last_told.get(&channel).copied().unwrap_or_default());
        self.last_told.insert(channel, time);
        self.at(time, Event::Tell(input));
    }

    fn run(&mut self) {
        // Long enough for every back-off, short enough for a connection that is looked at for ever.
        const END: u64 = 400_000_000_000;
        while let Some(((time, _), event)) = self.queue.pop_first() {
            if time > END {
                break;
            }
            self.now = time;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Act(act) => {
                let before = self.connected;
                self.act(act);
                if before && !self.connected {
                    self.killed_by = Some(act);
                }
            }
            Event::End(pid, end) => self.end(pid, end),
            Event::Tell(input) => self.give(input),
            Event::LookAtMounts => {
                let look = Input::Mounts { count: self.mounts, control: self.superblock };
                self.tell(Channel::Answers, look);
            }
            Event::Probe => {
                let at = Boottime(self.now);
                let outcome = self.probe();
                self.tell(Channel::Answers, Input::Probed { outcome, at, first_look: false });
            }
            Event::FindHolders => {
                let mut holders: Vec<u32> = self.daemons.iter().copied().collect();
                if self.holder {
                    self.holder_watched = true;
                    holders.push(HOLDER);
                }
                let holders = holders.into_iter().map(|pid| Process { pid, comm: None }).collect();
                self.tell(Channel::Answers, Input::Holders { named: holders, others: Others::Nobody });
            }
            Event::Timer(timer, armed) if self.armed.get(&timer) == Some(&armed) => {
                self.armed.remove(&timer);
                self.give(Input::Timer(timer));
                if timer == Timer::Settle {
                    self.later(Event::LookAtMounts);
                }
            }
            Event::Timer(..) => {}
        }
    }

    fn probe(&self) -> ProbeOutcome {
        match (self.mounts, self.connected) {
            (0, _) => ProbeOutcome::Gone,
            (_, false) => ProbeOutcome::Dead { errno: libc::ENOTCONN },
            (_, true) if self.daemons.is_empty() || self.stopped => ProbeOutcome::TimedOut,
            (_, true) => ProbeOutcome::Alive,
        }
    }

    fn give(&mut self, input: Input) {
        let effects = self.machine.on(Boottime(self.now), input);
        for effect in effects {
            match effect {
                Effect::Probe => self.later(Event::Probe),
                Effect::FindHolders => self.later(Event::FindHolders),
                Effect::Arm(timer, delay) => {
                    self.armed.insert(timer, self.sequence);
                    let armed = self.sequence;
                    self.at(self.now + u64::try_from(delay.as_nanos()).unwrap(), Event::Timer(timer, armed));
                }
                Effect::Disarm(timer) => {
                    self.armed.remove(&timer);
                }
                Effect::Tell(verdict) => {
                    if let Verdict::Dead { .. } = verdict {
                        assert!(!self.connected, "a living connection was said to be dead");
                    }
                    self.told.push(verdict);
                }
            }
        }
    }

    fn act(&mut self, act: Act) {
        let at = Boottime(self.now);
        match act {
            Act::Kill | Act::ExitWithoutUnmounting(_) => {
                let status = match act {
                    Act::ExitWithoutUnmounting(code) => ExitStatus::Code(code),
                    _ => ExitStatus::Signal(Signal::KILL),
                };
                self.signalled |= act == Act::Kill;
                for pid in self.daemons.clone() {
                    self.end(pid, DaemonEnd { status, sender: None, oom: false });
                }
            }
            Act::Leave if self.holder || self.daemons.is_empty() => {}
            Act::Leave => {
                self.disconnect(FIRST_DAEMON, false, None);
                self.later(Event::Act(Act::Unmount));
                for pid in self.daemons.clone() {
                    self.later(Event::End(pid, exit_zero()));
                }
            }
            Act::Abort if self.connected => {
                self.disconnect(ADMIN.pid, false, Some(AbortCall::Write));
                if self.sources.fanotify {
                    self.tell(Channel::Fanotify, Input::AbortWritten { at, actor: Some(ADMIN) });
                }
                for pid in self.daemons.clone() {
                    self.later(Event::End(pid, exit_zero()));
                }
            }
            Act::Unmount => self.unmount(),
            Act::UnmountLazilyWhileInUse if self.mounts > 0 => {
                self.in_use = true;
                self.unmount();
            }
            Act::LastUserCloses => {
                self.in_use = false;
                self.release();
            }
            Act::HandOver if self.connected && !self.daemons.is_empty() => {
                let old = self.daemons.clone();
                self.daemons.insert(old.last().unwrap() + 1);
                self.stopped = false;
                for pid in old {
                    self.end(pid, exit_zero());
                }
            }
            Act::ChildKeepsDescriptor if !self.daemons.is_empty() && self.connected => self.holder = true,
            Act::HolderEnds if self.holder => {
                self.holder = false;
                self.descriptor_closed(HOLDER);
                if self.holder_watched {
                    self.tell(Channel::Pidfd, exited(HOLDER, at, None, ExitSource::Pidfd));
                }
            }
            Act::DaemonStops => self.stopped = true,
            Act::DaemonContinues => self.stopped = false,
            Act::ApplicationFails => self.tell(Channel::Answers, Input::AccessFailed { at }),
            Act::Abort | Act::UnmountLazilyWhileInUse | Act::HandOver | Act::ChildKeepsDescriptor | Act::HolderEnds => {
            }
        }
    }

    fn end(&mut self, pid: u32, end: DaemonEnd) {
        if !self.daemons.remove(&pid) {
            return;
        }
        let at = Boottime(self.now);
        if self.sources.hooks {
            self.tell(Channel::Hooks, exited(pid, at, Some(end.clone()), ExitSource::Hook));
        }
        self.descriptor_closed(pid);
        let end = self.sources.status_by_pidfd.then_some(end);
        self.tell(Channel::Pidfd, exited(pid, at, end, ExitSource::Pidfd));
    }

    fn descriptor_closed(&mut self, by: u32) {
        if self.daemons.is_empty() && !self.holder && self.connected {
            self.disconnect(by, true, None);
        }
    }

    fn disconnect(&mut self, by: u32, exiting: bool, call: Option<AbortCall>) {
        self.connected = false;
        if self.sources.hooks && self.sources.requests_in_flight {
            let by = Process { pid: by, comm: None };
            self.tell(Channel::Hooks, Input::RequestsAborted { at: Boottime(self.now), by, exiting, call });
        }
    }

    fn unmount(&mut self) {
        if self.mounts > 0 {
            self.mounts = 0;
            self.later(Event::LookAtMounts);
        }
        self.release();
    }

    /// With the last mount and the last user, the superblock goes, and the daemons read ENODEV.
    fn release(&mut self) {
        if self.mounts > 0 || self.in_use || !self.superblock {
            return;
        }
        self.superblock = false;
        self.connected = false;
        for pid in self.daemons.clone() {
            self.later(Event::End(pid, exit_zero()));
        }
    }

    /// What is true now must have been told.
    fn check(&self) -> Result<(), TestCaseError> {
        let death = self.told.iter().find_map(|verdict| match verdict {
            Verdict::Dead { reason, .. } => Some(reason),
            _ => None,
        });
        let (state, told) = (self.machine.state(), &self.told);
        match (self.superblock, self.mounts) {
            (false, _) => prop_assert_eq!(state, State::Gone, "{:?}", told),
            (true, 0) if self.connected => prop_assert_eq!(state, State::Detached, "{:?}", told),
            // Without a mount there is nothing to probe, and a held descriptor hides an abort.
            (true, 0) => prop_assert!(death.is_some() || self.holder, "{} {:?}", state, told),
            (true, _) if self.connected => prop_assert!(death.is_none(), "{:?}", told),
            (true, _) => prop_assert!(death.is_some(), "{} {:?}", state, told),
        }
        if self.connected && self.mounts > 0 && self.daemons.is_empty() {
            prop_assert_eq!(state, State::Hung, "{:?}", told);
        }
        match (self.killed_by, death) {
            (Some(Act::Kill), Some(reason)) if self.sources.hooks || self.sources.status_by_pidfd => {
                prop_assert_eq!(reason, &Reason::Signal { signal: Signal::KILL, sender: None });
            }
            (Some(Act::Abort), Some(reason)) if self.sources.fanotify && !self.signalled => {
                prop_assert_eq!(reason, &Reason::AdminAbort { actor: Some(ADMIN) });
            }
            _ => {}
        }
        Ok(())
    }
}

fn exit_zero() -> DaemonEnd {
    DaemonEnd { status: ExitStatus::Code(0), sender: None, oom: false }
}

fn exited(pid: u32, at: Boottime, end: Option<DaemonEnd>, source: ExitSource) -> Input {
    Input::DaemonExited { pid, at, stamped: source == ExitSource::Hook, end, source }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => Just(Act::Kill),
        1 => any::<u8>().prop_map(Act::ExitWithoutUnmounting),
        2 => Just(Act::Leave),
        2 => Just(Act::Abort),
        1 => Just(Act::Unmount),
        1 => Just(Act::UnmountLazilyWhileInUse),
        1 => Just(Act::LastUserCloses),
        3 => Just(Act::HandOver),
        2 => Just(Act::ChildKeepsDescriptor),
        1 => Just(Act::HolderEnds),
        1 => Just(Act::DaemonStops),
        1 => Just(Act::DaemonContinues),
        3 => Just(Act::ApplicationFails),
    ]
}

fn sources() -> impl Strategy<Value = Sources> {
    any::<[bool; 4]>().prop_map(|[hooks, fanotify, status_by_pidfd, requests_in_flight]| Sources {
        hooks,
        fanotify,
        status_by_pidfd,
        requests_in_flight,
    })
}

/// Delays below half the grace period: what takes longer than the grace period is, and may be, told as a death.
fn delays() -> impl Strategy<Value = Vec<u64>> {
    let longest = u64::try_from(GRACE.as_nanos()).unwrap() / 5;
    prop::collection::vec(prop_oneof![0_u64..100_000, 0..longest], 1..40)
}

proptest! {
    #[test]
    fn the_truth_is_told_in_the_end(
        sources in sources(),
        delays in delays(),
        acts in prop::collection::vec((prop_oneof![0_u64..2_000_000, 0_u64..3_000_000_000], act()), 1..8),
    ) {
        let mut world = World::new(sources, delays);
        let mut time = 0;
        for (gap, act) in acts {
            time += gap;
            world.at(time, Event::Act(act));
        }
        world.run();
        world.check()?;
    }

    #[test]
    fn leaving_in_good_order_never_alarms(sources in sources(), delays in delays(), unmounted_by_others in any::<bool>()) {
        let mut world = World::new(sources, delays);
        world.at(0, Event::Act(if unmounted_by_others { Act::Unmount } else { Act::Leave }));
        world.run();
        prop_assert_eq!(&world.told[..], &[Verdict::Ready, Verdict::Unmounted][..]);
    }

    #[test]
    fn a_kill_is_told_without_waiting(sources in sources(), delays in delays()) {
        // Nobody knows of a signal that neither source tells.
        let sources = Sources { hooks: sources.hooks || !sources.status_by_pidfd, ..sources };
        let longest = delays.iter().max().copied().unwrap();
        let mut world = World::new(sources, delays);
        world.at(0, Event::Act(Act::Kill));
        while !world.told.iter().any(|verdict| matches!(verdict, Verdict::Dead { .. })) {
            let ((time, _), event) = world.queue.pop_first().expect("the death is told");
            world.now = time;
            world.happen(event);
        }
        // The exit is told, the probe sent, its answer told.
        prop_assert!(world.now <= 3 * longest, "{:?}", Duration::from_nanos(world.now));
    }
}
