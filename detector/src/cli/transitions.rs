//! Transitions on standard output: a line each, for people or for machines.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::args::Output;
use super::style::{Painter, Style};
use super::{terminal, units};
use crate::model::{Daemon, Recovery, Transition, TransitionKind};
use crate::telemetry::sink::LineSink;
use crate::text;

/// As wide as the longest word below.
const WORD_COLUMNS: usize = 10;

/// Mount points have this width, so that all lines align. Of longer ones the end stands there, which tells them apart, and
/// the whole at the end of the line.
const MOUNT_COLUMNS: usize = 24;

/// Where a line that is too long for the terminal goes on: below the mount points.
const INDENT: usize = "02:40:11.123".len() + WORD_COLUMNS + 2 * GAP.len();

/// Between the parts of a line.
const GAP: &str = "  ";

/// How many mount points a line names before it only counts.
const NAMED_MOUNTS: usize = 3;

/// Prints transitions to a sink. Never blocks.
#[derive(Debug, Clone)]
pub struct Printer {
    sink: LineSink,
    output: Output,
    painter: Painter,
    time_zone: TimeZone,
}

impl Printer {
    /// A printer of this format; the painter is for people only.
    pub fn new(sink: LineSink, output: Output, painter: Painter) -> Self {
        Self { sink, output, painter, time_zone: TimeZone::system() }
    }

    /// Prints one transition, decided at this time.
    pub fn print(&self, transition: &Transition, time: Timestamp) {
        match self.output {
            // Asked each time: terminals change their size.
            Output::Text => {
                let time = time.to_zoned(self.time_zone.clone());
                self.sink.line(&line(transition, &time, self.painter, terminal::columns()));
            }
            Output::Json => match transition.to_json(time) {
                Ok(line) => self.sink.line(&line),
                Err(error) => tracing::error!(%error, "a transition can't be written as JSON"),
            },
        }
    }

    /// The sink, to ask what it dropped and to finish it.
    pub fn sink(&self) -> &LineSink {
        &self.sink
    }
}

/// The line for people, without the line feed: time, event, mount points, type and source, and what is known. On a terminal
/// it goes on below where it is too long; elsewhere each is one line.
pub fn line(transition: &Transition, time: &Zoned, painter: Painter, terminal: Option<usize>) -> String {
    let (word, style) = word(&transition.kind);
    let mounts = mounts(transition);
    let (shown, whole) = in_column(&mounts);
    let mut line = Line { painter, terminal, text: String::new(), columns: 0 };
    line.add(Some(Style::Faint), &time.strftime("%H:%M:%S.%3f").to_string(), 0);
    line.add(Some(style), word, WORD_COLUMNS);
    line.add(None, &shown, MOUNT_COLUMNS);
    for part in file_system(transition).into_iter().chain(story(transition)) {
        line.add(None, &part, 0);
    }
    line.add(Some(Style::Faint), &facts(transition).join(", "), 0);
    if let Some(whole) = whole {
        line.add(None, &format!("at {whole}"), 0);
    }
    line.text.trim_end().to_owned()
}

/// A line, or several of them, in the making.
struct Line {
    painter: Painter,
    terminal: Option<usize>,
    text: String,
    /// How far the last one reaches.
    columns: usize,
}

impl Line {
    /// Adds a part, padded to `width`; in a new line where the terminal ends before it does.
    fn add(&mut self, style: Option<Style>, part: &str, width: usize) {
        let length = part.chars().count();
        if length == 0 && width == 0 {
            return;
        }
        let reaches = self.columns + GAP.len() + length;
        if self.columns > INDENT && self.terminal.is_some_and(|terminal| reaches > terminal) {
            self.text.truncate(self.text.trim_end().len());
            self.text.push('\n');
            self.text.push_str(&" ".repeat(INDENT));
            self.columns = INDENT;
        } else if self.columns > 0 {
            self.text.push_str(GAP);
            self.columns += GAP.len();
        }
        self.text.push_str(&self.painter.column(style, part, width));
        self.columns += length.max(width);
    }
}

/// What stands in the column of mount points, and the whole where it does not fit there.
fn in_column(mounts: &str) -> (String, Option<&str>) {
    let length = mounts.chars().count();
    if length <= MOUNT_COLUMNS {
        return (mounts.to_owned(), None);
    }
    (['…'].into_iter().chain(mounts.chars().skip(length + 1 - MOUNT_COLUMNS)).collect(), Some(mounts))
}

const fn word(kind: &TransitionKind) -> (&'static str, Style) {
    match kind {
        TransitionKind::Ready => ("READY", Style::Good),
        TransitionKind::Hung(_) => ("HUNG", Style::Warning),
        TransitionKind::Dead(_) => ("DEAD", Style::Bad),
        TransitionKind::Recovering { .. } => ("RECOVERING", Style::Busy),
        TransitionKind::Recovered(_) => ("RECOVERED", Style::Good),
        TransitionKind::RecoveryFailed { retry_in: Some(_), .. } => ("FAILED", Style::Warning),
        TransitionKind::RecoveryFailed { retry_in: None, .. } => ("GAVE UP", Style::Bad),
        TransitionKind::Unmounted => ("UNMOUNTED", Style::Faint),
        TransitionKind::Detached => ("DETACHED", Style::Faint),
    }
}

/// The different mount points; the same one in several namespaces counts once.
fn mounts(transition: &Transition) -> String {
    let mut different: Vec<_> = Vec::new();
    for mount in &transition.mounts {
        if !different.contains(&&mount.mount_point) {
            different.push(&mount.mount_point);
        }
    }
    let named: Vec<_> =
        different.iter().take(NAMED_MOUNTS).map(|mount_point| text::printable(mount_point.as_os_str())).collect();
    let more = different.len().saturating_sub(NAMED_MOUNTS);
    match (named.is_empty(), more) {
        (true, _) => format!("(no mount, {})", transition.connection.device),
        (false, 0) => named.join(", "),
        (false, more) => format!("{} and {more} more", named.join(", ")),
    }
}

fn file_system(transition: &Transition) -> Option<String> {
    let fs_type = text::printable(transition.fs_type.as_deref()?.as_ref());
    let source = transition.source.as_deref().map(text::printable).unwrap_or_default();
    // Daemons without a better idea call their source what they are called themselves.
    let says_nothing = source.is_empty() || source == "none" || fs_type.rsplit('.').next() == Some(&source);
    Some(if says_nothing { fs_type } else { format!("{fs_type} of {source}") })
}

const fn flaps(flapping: bool) -> &'static str {
    if flapping { "; the daemon dies again soon after each recovery" } else { "" }
}

/// What happened, in a clause.
fn story(transition: &Transition) -> Option<String> {
    let clause = match &transition.kind {
        TransitionKind::Ready => format!("served by {}", who(transition.daemon.as_ref()?)),
        TransitionKind::Hung(reason) | TransitionKind::Dead(reason) => with_daemon(transition, &reason.to_string()),
        TransitionKind::Recovering { strategy, flapping } => format!("by {strategy}{}", flaps(*flapping)),
        TransitionKind::Recovered(Recovery { strategy, replacement, recovery: _, outage: _ }) => {
            format!("by {strategy}, now connection {}", replacement.device)
        }
        TransitionKind::RecoveryFailed { strategy, error, retry_in: _, flapping } => {
            format!("{strategy}: {error}{}", flaps(*flapping))
        }
        TransitionKind::Unmounted => return None,
        TransitionKind::Detached => "no mount left, but still in use".to_owned(),
    };
    // Names of processes and messages of other programs are in it.
    Some(text::printable(clause.as_ref()))
}

fn with_daemon(transition: &Transition, clause: &str) -> String {
    match &transition.daemon {
        Some(daemon) => format!("{}: {clause}", who(daemon)),
        None => clause.to_owned(),
    }
}

fn who(Daemon { pid, comm, alive: _ }: &Daemon) -> String {
    match comm {
        Some(comm) => format!("{comm} ({pid})"),
        None => format!("process {pid}"),
    }
}

/// Numbers at the end of the line.
fn facts(transition: &Transition) -> Vec<String> {
    let mut facts = Vec::new();
    match &transition.kind {
        TransitionKind::Recovered(Recovery { recovery, outage, strategy: _, replacement: _ }) => {
            facts.push(format!("{} after it was ready", units::duration(*recovery)));
            facts.extend(outage.map(|outage| format!("outage {}", units::duration(outage))));
        }
        TransitionKind::RecoveryFailed { retry_in: Some(delay), .. } => {
            facts.push(format!("next try in {}", units::duration(*delay)));
        }
        TransitionKind::Dead(_) | TransitionKind::Hung(_) => {
            facts.extend(transition.detection.map(units::duration));
            let aborted = transition.aborted_requests.filter(|aborted| *aborted > 0);
            facts.extend(aborted.map(|aborted| format!("{} aborted", units::count(aborted, "request"))));
        }
        TransitionKind::RecoveryFailed { retry_in: None, .. }
        | TransitionKind::Ready
        | TransitionKind::Recovering { .. }
        | TransitionKind::Unmounted
        | TransitionKind::Detached => {}
    }
    facts
}

#[cfg(test)]
mod tests;
