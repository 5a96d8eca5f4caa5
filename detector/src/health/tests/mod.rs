//! Each scenario as the sequence of inputs that the kernel gives rise to.

mod aborts;
mod deaths;
mod presence;

use std::time::Duration;

use super::*;
use crate::model::{AbortCall, Boottime, ConnectionId, Daemon, DeviceNumber, ExitStatus, Process, Reason, Signal};

const ENOTCONN: i32 = libc::ENOTCONN;
const DAEMON: u32 = 812;

/// A machine, and a clock that moves a millisecond with every input.
struct Bench {
    machine: Machine,
    now: Boottime,
}

impl Bench {
    fn created() -> Self {
        let id = ConnectionId { device: DeviceNumber { major: 0, minor: 45 }, epoch: 1 };
        Self { machine: Machine::new(id, Origin::Seen), now: Boottime(1_000_000_000) }
    }

    /// One that serves, with one mount and one daemon.
    fn ready() -> Self {
        let mut bench = Self::created();
        assert_eq!(bench.on(Input::Initialised), [Effect::Tell(Verdict::Ready)]);
        assert_eq!(bench.on(seen(DAEMON)), []);
        assert_eq!(bench.on(mounts(1, true)), []);
        bench
    }

    /// One without mounts that is still in use.
    fn detached() -> Self {
        let mut bench = Self::ready();
        bench.on(mounts(0, true));
        bench.on(Input::Timer(Timer::Settle));
        assert_eq!(bench.told(mounts(0, true)), [Verdict::Detached]);
        bench
    }

    fn on(&mut self, input: Input) -> Vec<Effect> {
        self.now = self.now + Duration::from_millis(1);
        self.machine.on(self.now, input)
    }

    fn told(&mut self, input: Input) -> Vec<Verdict> {
        verdicts(self.on(input))
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    fn hook(&mut self, end: DaemonEnd) -> Vec<Effect> {
        let at = self.now;
        self.on(exited(DAEMON, at, true, Some(end), ExitSource::Hook))
    }

    fn pidfd(&mut self, end: Option<DaemonEnd>) -> Vec<Effect> {
        let at = self.now;
        self.on(exited(DAEMON, at, false, end, ExitSource::Pidfd))
    }

    fn probed(&mut self, outcome: ProbeOutcome) -> Vec<Effect> {
        let at = self.now;
        self.on(Input::Probed { outcome, at, first_look: false })
    }

    fn aborted(&mut self, by: u32, exiting: bool, call: Option<AbortCall>) -> Vec<Effect> {
        let at = self.now;
        self.on(Input::RequestsAborted { at, by: process(by), exiting, call })
    }
}

fn verdicts(effects: Vec<Effect>) -> Vec<Verdict> {
    effects
        .into_iter()
        .filter_map(|effect| if let Effect::Tell(verdict) = effect { Some(verdict) } else { None })
        .collect()
}

fn process(pid: u32) -> Process {
    Process { pid, comm: Some(format!("p{pid}")) }
}

fn seen(pid: u32) -> Input {
    Input::DaemonSeen(Daemon { pid, comm: Some(format!("p{pid}")), alive: true })
}

fn mounts(count: usize, control: bool) -> Input {
    Input::Mounts { count, control }
}

fn exited(pid: u32, at: Boottime, stamped: bool, end: Option<DaemonEnd>, source: ExitSource) -> Input {
    Input::DaemonExited { pid, at, stamped, end, source }
}

fn killed() -> DaemonEnd {
    DaemonEnd { status: ExitStatus::Signal(Signal::KILL), sender: Some(process(900)), oom: false }
}

fn code(code: u8) -> DaemonEnd {
    DaemonEnd { status: ExitStatus::Code(code), sender: None, oom: false }
}

/// Those that the kernel names.
fn holders<const N: usize>(pids: [u32; N]) -> Input {
    Input::Holders { named: pids.map(process).to_vec(), others: Others::Nobody }
}

const DEAD: ProbeOutcome = ProbeOutcome::Dead { errno: ENOTCONN };

fn killed_reason() -> Reason {
    Reason::Signal { signal: Signal::KILL, sender: Some(process(900)) }
}

/// The reason of the one verdict, which is a death.
#[track_caller]
fn death(effects: Vec<Effect>) -> Reason {
    match verdicts(effects).as_slice() {
        [Verdict::Dead { reason, .. }] => reason.clone(),
        other => panic!("not one death but {other:?}"),
    }
}
