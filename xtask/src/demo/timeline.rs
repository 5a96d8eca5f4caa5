//! What happened, in the order in which it happened, in words.

use std::time::Duration;

use jiff::Timestamp;
use nix::errno::Errno;

use super::application::{Outage, Seen};
use crate::transition::{Line, between};

/// Who tells of an entry, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Harm: the kill, and what must never happen.
    Harm,
    /// The kernel and the agent.
    Agent,
    /// The application: an error.
    Trouble,
    /// The application or the agent: it works.
    Well,
}

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// Who tells it.
    pub side: Side,
    /// What, in one or two words.
    pub what: &'static str,
    /// The particulars.
    pub detail: String,
}

/// Everything that was seen.
pub struct Story {
    /// Right before kill(2).
    pub killed: Timestamp,
    /// The daemon that was killed.
    pub daemon: u32,
    /// The agent's line about the death.
    pub dead: Line,
    /// Its line about the strategy at work.
    pub recovering: Option<Line>,
    /// Its line about the heal.
    pub recovered: Line,
    /// What the application saw.
    pub seen: Seen,
}

impl Story {
    /// The entries in order of time; of the same moment, cause before effect.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = vec![self.kill()];
        entries.extend(self.detection());
        entries.extend(self.recovery());
        for outage in &self.seen.outages {
            entries.extend(application(outage));
        }
        entries.extend(self.seen.first_wrong.map(|at| {
            let detail = "first read of a WRONG file: that of the directory below the mount".to_owned();
            Entry { at, side: Side::Harm, what: "application", detail }
        }));
        entries.sort_by_key(|entry| entry.at);
        entries
    }

    fn kill(&self) -> Entry {
        let detail = format!("SIGKILL to steerfs ({}), the daemon of connection {}", self.daemon, self.dead.connection);
        Entry { at: self.killed, side: Side::Harm, what: "kill", detail }
    }

    fn detection(&self) -> Vec<Entry> {
        let Line { time, connection, backend, daemon, reason, detection_micros, .. } = &self.dead;
        let who = daemon.as_ref().map_or_else(|| "its daemon".to_owned(), ToString::to_string);
        let why = reason.as_ref().map_or_else(|| "nobody knows why".to_owned(), ToString::to_string);
        let decided = format!("connection {connection} is dead: {who} {why}");
        let entry = |at, what, detail| Entry { at, side: Side::Agent, what, detail };
        match detection_micros.map(Duration::from_micros) {
            Some(took) => vec![
                entry(*time - took, "kernel event", format!("{who} ends (backend {backend})")),
                entry(*time, "decision", format!("{decided} ({} after the event)", span(took))),
            ],
            None => vec![entry(*time, "decision", format!("{decided} (backend {backend})"))],
        }
    }

    fn recovery(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        let entry = |at, side, what, detail| Entry { at, side, what, detail };
        if let Some(line) = &self.recovering {
            let strategy = line.strategy.as_deref().unwrap_or("?");
            entries.push(entry(line.time, Side::Agent, "recovering", format!("strategy {strategy}")));
        }
        let healed = self.recovered.time;
        let by = self.recovered.replacement.as_ref();
        let replacement = by.map_or_else(String::new, |by| format!("connection {} ", by.connection));
        if let Some(took) = self.recovered.recovery_micros.map(Duration::from_micros) {
            let detail = format!("{replacement}answered FUSE_INIT");
            entries.push(entry(healed - took, Side::Agent, "replacement ready", detail));
        }
        entries.push(entry(healed, Side::Well, "healed", format!("{replacement}serves at the mount point, verified")));
        entries
    }

    /// From the kill to the verified heal.
    pub fn outage(&self) -> Duration {
        between(self.killed, self.recovered.time)
    }

    /// What a person wants to know, one sentence a line.
    pub fn summary(&self) -> Vec<String> {
        let mut lines = vec![format!("outage: {} from the kill to the verified heal", span(self.outage()))];
        for outage in &self.seen.outages {
            if let (Some(from), Some(to)) = (outage.last_good, outage.first_good) {
                let count = outage.count();
                let reads = if count == 1 { "read" } else { "reads" };
                let without = span(between(from, to));
                lines.push(format!("the application was {without} without a good read; {count} {reads} failed"));
            }
        }
        if self.seen.outages.is_empty() {
            lines.push("the application saw no error: it did not read while the mount was dead".to_owned());
        }
        lines.push(match self.seen.wrong {
            0 => format!("{} good reads in all, never a wrong file", self.seen.good),
            wrong => format!("WRONG CONTENT in {wrong} reads: the directory below the mount was visible"),
        });
        lines
    }
}

fn application(outage: &Outage) -> Vec<Entry> {
    let (failed, errno) = outage.first_error;
    let entry = |at, side, detail| Entry { at, side, what: "application", detail };
    let mut entries = Vec::new();
    if let Some(at) = outage.last_good {
        entries.push(entry(at, Side::Well, format!("last good read, the {}", ordinal(outage.reads_before))));
    }
    entries.push(entry(failed, Side::Trouble, format!("first error: {}", error(errno))));
    if let Some(at) = outage.first_good {
        let kinds: Vec<_> = outage.errors.iter().map(|(errno, count)| format!("{count} × {errno:?}")).collect();
        entries.push(entry(at, Side::Well, format!("first good read again, after {}", kinds.join(" and "))));
    }
    entries
}

fn error(errno: Errno) -> String {
    format!("{errno:?} ({}), {:?}", errno as i32, errno.desc())
}

fn ordinal(number: u64) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

/// A time span with the unit that suits it.
pub fn span(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::transition::samples::{self, DEAD, RECOVERED, RECOVERING};

    pub fn story() -> Story {
        let at = |text: &str| text.parse().unwrap();
        let outage = Outage {
            last_good: Some(at("2026-11-30T02:40:10.999990Z")),
            reads_before: 2412,
            first_error: (at("2026-11-30T02:40:11.000450Z"), Errno::ECONNABORTED),
            errors: vec![(Errno::ECONNABORTED, 1), (Errno::ENOTCONN, 3310)],
            first_good: Some(at("2026-11-30T02:40:11.020900Z")),
        };
        Story {
            killed: at("2026-11-30T02:40:11.000000Z"),
            daemon: 812,
            dead: samples::line(DEAD),
            recovering: Some(samples::line(RECOVERING)),
            recovered: samples::line(RECOVERED),
            seen: Seen { good: 5000, outages: vec![outage], ..Seen::default() },
        }
    }

    #[test]
    fn the_story_is_told_in_order() {
        let told: Vec<_> = story().entries().into_iter().map(|entry| (entry.what, entry.detail)).collect();
        let told: Vec<_> = told.iter().map(|(what, detail)| (*what, detail.as_str())).collect();
        assert_eq!(
            told,
            [
                ("application", "last good read, the 2412th"),
                ("kill", "SIGKILL to steerfs (812), the daemon of connection 0:45"),
                ("kernel event", "steerfs (812) ends (backend tracepoint)"),
                ("application", "first error: ECONNABORTED (103), \"Software caused connection abort\""),
                (
                    "decision",
                    "connection 0:45 is dead: steerfs (812) killed by SIGKILL from xtask (900) (74 µs after the event)"
                ),
                ("recovering", "strategy respawn"),
                ("replacement ready", "connection 0:46 answered FUSE_INIT"),
                ("application", "first good read again, after 1 × ECONNABORTED and 3310 × ENOTCONN"),
                ("healed", "connection 0:46 serves at the mount point, verified"),
            ]
        );
    }

    #[test]
    fn the_summary_has_the_outage_and_what_the_application_saw() {
        assert_eq!(
            story().summary(),
            [
                "outage: 21.0 ms from the kill to the verified heal",
                "the application was 20.9 ms without a good read; 3311 reads failed",
                "5000 good reads in all, never a wrong file",
            ]
        );
        let mut wrong = story();
        wrong.seen.wrong = 2;
        wrong.seen.first_wrong = Some(wrong.recovered.time);
        assert!(wrong.entries().last().unwrap().detail.contains("WRONG"));
        assert!(wrong.summary().last().unwrap().starts_with("WRONG CONTENT in 2 reads"));
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            [1, 2, 3, 4, 11, 12, 13, 21, 111].map(ordinal),
            ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th"]
        );
        assert_eq!(
            [(0, "0 µs"), (999, "999 µs"), (1_500, "1.5 ms"), (12_000_000, "12.0 s")]
                .map(|(micros, _)| span(Duration::from_micros(micros))),
            ["0 µs", "999 µs", "1.5 ms", "12.0 s"]
        );
    }
}
