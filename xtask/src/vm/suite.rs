//! The scenarios as a job for a virtual machine, and what became of each.

use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::image::HOME;
use super::programs::Programs;

/// What the job says around each scenario.
const BEGIN_MARKER: &str = "fuse-detector-vm begins: ";
const DONE_MARKER: &str = "fuse-detector-vm done: ";

/// How a program's end by timeout(1) is reported: by SIGKILL (128 + 9).
const KILLED: &str = "137";

/// The machine is emulated and has two processors at best: what waits for something waits so many times longer.
const PATIENCE_FACTOR: u32 = 5;

/// How many mounts the scenario with hundreds of them has here: an emulated machine takes minutes for those.
const MASS: u32 = 40;

/// After which a single scenario is ended, as hanging. Above the longest wait within one, so that it can tell itself.
const SCENARIO_DEADLINE: Duration = Duration::from_secs(200);

/// A scenario with a backend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// The test program.
    pub program: String,
    /// The test's name.
    pub name: String,
}

impl Test {
    /// The scenario without its backend.
    pub fn scenario(&self) -> String {
        let name = self.name.rsplit_once("::").map_or(self.name.as_str(), |(scenario, _)| scenario);
        format!("{}::{name}", self.program)
    }

    /// The backend: what the macro `scenarios!` puts behind the scenario's name. None for a test that has its own.
    pub fn backend(&self) -> Option<&str> {
        self.name.rsplit_once("::").map(|(_, backend)| backend)
    }

    fn parse(text: &str) -> Option<Self> {
        let (program, name) = text.trim().split_once(' ')?;
        Some(Self { program: program.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.program, self.name)
    }
}

/// What became of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran, and was as it should be.
    Passed,
    /// It was not.
    Failed(String),
    /// It did not run: the kernel, or the machine, lacks what it needs.
    Cannot(String),
}

/// Every test whose whole name holds one of the filters, with one of the backends; all, if there is no filter.
///
/// # Errors
/// A test program does not start, or nothing fits.
pub fn choose(programs: &Programs, filters: &[String], backends: &[String]) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for program in &programs.tests {
        let output = Command::new(&program.path).args(["--list", "--format", "terse"]).output();
        let output = output.with_context(|| format!("cannot start {}", program.path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        tests.extend(names.map(|name| Test { program: program.name.clone(), name: name.to_owned() }));
    }
    let any = |list: &[String], fits: &dyn Fn(&String) -> bool| list.is_empty() || list.iter().any(fits);
    tests.retain(|test| {
        any(filters, &|filter| test.to_string().contains(filter.as_str()))
            && any(backends, &|backend| test.backend() == Some(backend))
    });
    ensure!(!tests.is_empty(), "no scenario fits");
    tests.sort();
    Ok(tests)
}

/// The script that runs them one after the other, each in a process of its own. Where a backend that is expected does not
/// work, its tests fail.
pub fn job(tests: &[Test], expected: &[&str]) -> String {
    let mut script = format!(
        "export FUSE_DETECTOR_PATIENCE={PATIENCE_FACTOR} FUSE_DETECTOR_MASS={MASS}\n\
         export FUSE_DETECTOR_EXPECT_BACKENDS={}\n\
         export FUSE_DETECTOR_DOCTOR=/run/doctor; mkdir /run/doctor\n\
         run() {{\n\
             echo \"{BEGIN_MARKER}$1 $2\"\n\
             timeout -s KILL {} {HOME}/deps/$1 --exact $2 --nocapture --test-threads 1 2>&1\n\
             code=$?\n\
             echo\n\
             echo \"{DONE_MARKER}$code\"\n\
             [ $code = {KILLED} ] && kill -9 -1\n\
         }}\n",
        expected.join(","),
        SCENARIO_DEADLINE.as_secs()
    );
    for backend in tests.iter().filter_map(Test::backend).collect::<BTreeSet<_>>() {
        script +=
            &format!("fuse-detector doctor --output json --backend {backend} >/run/doctor/{backend}.json </dev/null\n");
    }
    for test in tests {
        script += &format!("run {} {}\n", test.program, test.name);
    }
    script + "exit 0\n"
}

/// Reads what the job says.
#[derive(Default)]
pub struct Reader {
    running: Option<(Test, Vec<String>)>,
}

/// A scenario that has ended, with what it said.
pub struct Ended {
    /// Which one.
    pub test: Test,
    /// What became of it.
    pub outcome: Outcome,
    /// Its output.
    pub output: Vec<String>,
}

impl Reader {
    /// Takes a line; gives the scenario that ends with it.
    pub fn line(&mut self, line: &str) -> Option<Ended> {
        if let Some((_, test)) = line.split_once(BEGIN_MARKER) {
            self.running = Test::parse(test).map(|test| (test, Vec::new()));
        } else if let Some((_, code)) = line.split_once(DONE_MARKER) {
            let (test, output) = self.running.take()?;
            return Some(Ended { outcome: judge(code.trim(), &output), test, output });
        } else if let Some((_, output)) = &mut self.running {
            output.push(line.to_owned());
        }
        None
    }

    /// The one that was running when the machine ended.
    pub fn interrupted(self) -> Option<(Test, Vec<String>)> {
        self.running
    }
}

/// From the exit code and the output of a test program that ran one test.
fn judge(code: &str, output: &[String]) -> Outcome {
    let says = |text: &str| output.iter().find_map(|line| line.split_once(text)).map(|(_, rest)| rest.to_owned());
    match code {
        "0" => match says("SKIPPED") {
            // `SKIPPED: why`, or `SKIPPED test: why`, where a test's name has no blank behind its colons.
            Some(why) => Outcome::Cannot(why.split_once(": ").map_or(why.clone(), |(_, why)| why.to_owned())),
            None if says("test result: ok. 1 passed").is_some() => Outcome::Passed,
            None => Outcome::Failed("the test did not run".into()),
        },
        KILLED => Outcome::Failed(format!("HANG: ended after {SCENARIO_DEADLINE:?}")),
        _ => Outcome::Failed(format!("exit code {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Vec<(String, Outcome)> {
        let mut reader = Reader::default();
        lines.iter().filter_map(|line| reader.line(line)).map(|ended| (ended.test.to_string(), ended.outcome)).collect()
    }

    #[test]
    fn what_became_of_each_is_read_from_the_jobs_output() {
        let lines = [
            "fuse-detector-vm begins: death idle::portable",
            "test idle::portable ... ok",
            "test result: ok. 1 passed; 0 failed",
            "fuse-detector-vm done: 0",
            "fuse-detector-vm begins: death idle::tracepoint",
            "test idle::tracepoint ... SKIPPED idle::tracepoint: backend tracepoint can't work here: no BTF",
            "ok",
            "test result: ok. 1 passed; 0 failed",
            "fuse-detector-vm done: 0",
            "fuse-detector-vm begins: death busy::portable",
            "fuse-detector-vm done: 101",
            "fuse-detector-vm begins: death slow::portable",
            "cut off fuse-detector-vm done: 137",
            "fuse-detector-vm begins: death gone::portable",
            "test result: ok. 0 passed; 0 failed",
            "fuse-detector-vm done: 0",
        ];
        let expected = [
            ("death::idle::portable", Outcome::Passed),
            ("death::idle::tracepoint", Outcome::Cannot("backend tracepoint can't work here: no BTF".into())),
            ("death::busy::portable", Outcome::Failed("exit code 101".into())),
            ("death::slow::portable", Outcome::Failed("HANG: ended after 200s".into())),
            ("death::gone::portable", Outcome::Failed("the test did not run".into())),
        ]
        .map(|(name, outcome)| (name.to_owned(), outcome));
        assert_eq!(read(&lines), expected);
    }

    #[test]
    fn a_backend_is_what_stands_behind_the_scenario() {
        let test = Test::parse("death idle::kprobe").unwrap();
        assert_eq!((test.scenario().as_str(), test.backend()), ("death::idle", Some("kprobe")));
        let test = Test::parse("watch watch_ends_with_its_reader").unwrap();
        assert_eq!((test.scenario().as_str(), test.backend()), ("watch::watch_ends_with_its_reader", None));
    }
}
