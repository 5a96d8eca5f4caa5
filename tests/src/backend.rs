//! The same scenario with each set of kernel hooks.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

use crate::agent;
use crate::sandbox::Sandbox;

/// Backends, separated by commas, that have to work here: what can't run is a failure then, instead of being skipped.
pub const EXPECT: &str = "FUSE_DETECTOR_EXPECT_BACKENDS";

/// A directory with what `doctor --output json --backend NAME` said, as `NAME.json`.
const DOCTOR: &str = "FUSE_DETECTOR_DOCTOR";

/// Which set of kernel hooks detection rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// BPF programs at FUSE's functions, by trampoline.
    Fentry,
    /// The same, by breakpoint.
    Kprobe,
    /// BPF programs on tracepoints.
    Tracepoint,
    /// No BPF.
    Portable,
}

impl Backend {
    /// As the command line and the events write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
            Self::Tracepoint => "tracepoint",
            Self::Portable => "portable",
        }
    }

    /// Whether kernel programs see what happens.
    pub const fn has_programs(self) -> bool {
        match self {
            Self::Fentry | Self::Kprobe | Self::Tracepoint => true,
            Self::Portable => false,
        }
    }

    fn is_expected(self) -> bool {
        std::env::var(EXPECT).is_ok_and(|names| names.split(',').any(|name| name.trim() == self.as_str()))
    }

    /// Why the kernel or the privileges at hand do not allow it; asked once.
    fn obstacle(self) -> Option<&'static str> {
        static OBSTACLES: [OnceLock<Option<String>>; 3] = [const { OnceLock::new() }; 3];
        let [fentry, kprobe, tracepoint] = &OBSTACLES;
        let obstacle = match self {
            Self::Portable => return None,
            Self::Fentry => fentry,
            Self::Kprobe => kprobe,
            Self::Tracepoint => tracepoint,
        };
        obstacle.get_or_init(|| ask_doctor(self)).as_deref()
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the agent says that the backend does not work here, or only in part: a hook of its own is missing. What it then
/// says of each such hook.
fn ask_doctor(backend: Backend) -> Option<String> {
    let report = asked_before(backend).unwrap_or_else(|| {
        let mut doctor = Command::new(agent::program());
        doctor.args(["doctor", "--output", "json", "--backend", backend.as_str()]).output().expect("doctor").stdout
    });
    let report: Value = serde_json::from_slice(&report).unwrap_or_else(|error| {
        panic!("doctor printed no JSON: {error}: {}", String::from_utf8_lossy(&report));
    });
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let hooks = report.get("hooks").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let lost = |hook: &&Value| {
        text(hook, "backend") == backend.as_str() && ["refused", "unsupported"].contains(&text(hook, "status").as_str())
    };
    let lost: Vec<_> =
        hooks.iter().filter(lost).map(|hook| format!("{}: {}", text(hook, "name"), text(hook, "why"))).collect();
    let works = text(&report, "backend") == backend.as_str() && lost.is_empty();
    (!works)
        .then(|| format!("doctor says: {}", if lost.is_empty() { "no such backend".into() } else { lost.join("; ") }))
}

/// What it said to somebody who asked once for many test programs: it takes long on an emulated machine.
fn asked_before(backend: Backend) -> Option<Vec<u8>> {
    let directory = std::env::var_os(DOCTOR)?;
    let file = Path::new(&directory).join(format!("{backend}.json"));
    Some(std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

/// Runs a scenario with a backend, in the given kind of sandbox. Where the backend can't work, it says so on standard
/// error even if the test harness captures output, or fails if [`EXPECT`] names the backend.
///
/// # Panics
/// If the scenario does.
pub fn run(backend: Backend, enter: fn(Backend, fn(&Sandbox)), scenario: fn(&Sandbox)) {
    match backend.obstacle() {
        None => enter(backend, scenario),
        Some(why) => skip(backend.is_expected(), &obstacle_text(backend, why)),
    }
}

/// The reason in full the first time, since it is the same for every scenario.
fn obstacle_text(backend: Backend, why: &str) -> String {
    static TOLD: Mutex<Vec<Backend>> = Mutex::new(Vec::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.contains(&backend) {
        return format!("backend {backend} can't work here, see above");
    }
    told.push(backend);
    format!("backend {backend} can't work here: {why}")
}

/// Says on standard error, past the test harness's capturing, that a test did not run.
///
/// # Panics
/// If it was expected to run.
pub fn skip(expected: bool, why: &str) {
    assert!(!expected, "{why}");
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // A macro's output would be captured and, as the test passes, never shown.
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {why}");
}

/// Makes of each function `fn(&Sandbox)` a test per backend.
#[macro_export]
macro_rules! scenarios {
    ($($scenario:ident),* $(,)?) => { $crate::scenarios!(in $crate::Sandbox::run; $($scenario),*); };
    (in $enter:path; $($scenario:ident),* $(,)?) => {
        $(mod $scenario {
            #[test]
            fn fentry() {
                $crate::backend::run($crate::Backend::Fentry, $enter, super::$scenario);
            }

            #[test]
            fn kprobe() {
                $crate::backend::run($crate::Backend::Kprobe, $enter, super::$scenario);
            }

            #[test]
            fn tracepoint() {
                $crate::backend::run($crate::Backend::Tracepoint, $enter, super::$scenario);
            }

            #[test]
            fn portable() {
                $crate::backend::run($crate::Backend::Portable, $enter, super::$scenario);
            }
        })*
    };
}
