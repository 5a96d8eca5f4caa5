//! The program under test, running.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::event::Event;
use crate::http::{self, Sample};
use crate::process;
use crate::sandbox::Sandbox;
use crate::steer::Command;
use crate::steerfs::Steerfs;
use crate::wait::{self, PATIENCE};

/// Names the program under test, if it is not beside the test programs.
const BINARY: &str = "FUSE_DETECTOR_BIN";

/// How much of the agent's log, and how many of its last events, are shown when a test fails.
const LOG_LINES: usize = 40;
const SHOWN_EVENTS: usize = 60;

/// How the agent is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rules of the policy, in front of the one that ignores everything outside the sandbox.
    pub rules: Vec<Value>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// The programs, with their arguments, that it is started through; each has to become the next.
    pub wrapper: Vec<String>,
}

impl Options {
    /// Observes every mount of the sandbox.
    pub fn observe(sandbox: &Sandbox) -> Self {
        Self::rule(sandbox, "**", json!({"mode": "observe"}))
    }

    /// Heals every mount of the sandbox by the strategy.
    pub fn heal(sandbox: &Sandbox, strategy: &str) -> Self {
        Self::rule(sandbox, "**", json!({"mode": "heal", "strategy": strategy}))
    }

    /// One rule for the mount points that match the pattern, relative to the sandbox.
    pub fn rule(sandbox: &Sandbox, pattern: &str, settings: Value) -> Self {
        Self { rules: Vec::new(), arguments: Vec::new(), wrapper: Vec::new() }.and(sandbox, pattern, settings)
    }

    /// Another rule behind those there are.
    #[must_use]
    pub fn and(mut self, sandbox: &Sandbox, pattern: &str, mut settings: Value) -> Self {
        settings["match"] = json!({"mountPoint": sandbox.join(pattern)});
        self.rules.push(settings);
        self
    }

    /// Starts it through another program.
    #[must_use]
    pub fn through(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// A further argument of `fuse-detector run`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }
}

/// A running `fuse-detector run`. Ended when dropped.
#[derive(Debug)]
pub struct Agent<'a> {
    sandbox: &'a Sandbox,
    child: Child,
    address: SocketAddr,
    events: Receiver<Event>,
    /// All that was received, in order.
    seen: Vec<Event>,
    log: PathBuf,
}

/// Distinguishes the agents and sentinels of one test program.
static SERIAL: AtomicU32 = AtomicU32::new(0);

impl<'a> Agent<'a> {
    /// Starts the agent and waits until it says that it is ready.
    ///
    /// # Panics
    /// If it does not become so.
    pub fn start(sandbox: &'a Sandbox, options: &Options) -> Self {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let (policy, log) =
            (sandbox.join(format!("policy-{serial}.yaml")), sandbox.join(format!("agent-{serial}.log")));
        let mut rules = vec![json!({"match": {"mountPoint": sandbox.join("sentinel-*")}, "mode": "observe"})];
        rules.extend(options.rules.iter().cloned());
        // The agent sees the whole machine, other tests included.
        rules.push(json!({"match": {"mountPoint": "**"}, "mode": "ignore"}));
        // JSON is YAML.
        fs::write(&policy, json!({"rules": rules}).to_string()).expect("write the policy");
        let program = program().to_owned().into_os_string();
        let mut words = options.wrapper.iter().map(OsString::from).chain([program]);
        let mut command = sandbox.command(words.next().expect("a program"));
        command.args(words).args(["run", "--output", "json", "--listen", "127.0.0.1:0", "--log-format", "text"]);
        command.args(["--backend", sandbox.backend().as_str()]).arg("--policy").arg(&policy).args(&options.arguments);
        command.stdout(Stdio::piped()).stderr(File::create(&log).expect("create the log"));
        // What a terminal sends to the test's process group shall not end the agent before its events are read.
        let mut child = command.process_group(0).spawn().expect("start the agent");
        let events = receive(child.stdout.take().expect("a pipe"));
        let address = wait_ready(&mut child, &log);
        Self { sandbox, child, address, events, seen: Vec::new(), log }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        tail(&self.log)
    }

    /// What it serves at a path: status code and body.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn get(&self, path: &str) -> (u16, String) {
        http::get(self.address, path).unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    /// Waits for an event, also among those received before.
    ///
    /// # Panics
    /// If none comes in time; with all that came, and the end of the agent's log.
    pub fn wait_for(&mut self, what: &str, matches: impl Fn(&Event) -> bool) -> Event {
        self.wait_within(PATIENCE, what, matches)
    }

    /// As [`Self::wait_for`], with another deadline.
    ///
    /// # Panics
    /// As [`Self::wait_for`].
    pub fn wait_within(&mut self, patience: Duration, what: &str, matches: impl Fn(&Event) -> bool) -> Event {
        match self.seen.iter().find(|event| matches(event)) {
            Some(event) => event.clone(),
            None => self.wait_new(patience, what, matches),
        }
    }

    /// As [`Self::wait_within`], for an event that was not received yet.
    ///
    /// # Panics
    /// As [`Self::wait_for`].
    pub fn wait_new(&mut self, patience: Duration, what: &str, matches: impl Fn(&Event) -> bool) -> Event {
        let patience = wait::stretched(patience);
        let deadline = Instant::now() + patience;
        loop {
            let event = match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => self.fail(&format!("waited {patience:?} in vain for {what}")),
                Err(RecvTimeoutError::Disconnected) => self.fail(&format!("the agent ended; waited for {what}")),
            };
            self.seen.push(event.clone());
            if matches(&event) {
                return event;
            }
        }
    }

    /// Waits for an event of a kind at a mount point.
    ///
    /// # Panics
    /// As [`Self::wait_for`].
    pub fn wait(&mut self, kind: &str, path: &Path) -> Event {
        self.wait_for(&format!("{kind} at {}", path.display()), |event| event.is(kind, path))
    }

    /// Waits until there were so many events of a kind at a mount point.
    ///
    /// # Panics
    /// As [`Self::wait_for`].
    pub fn wait_count(&mut self, count: usize, kind: &str, path: &Path) {
        let matches = |event: &Event| event.is(kind, path);
        let missing = count.saturating_sub(self.seen(matches).len());
        for _ in 0..missing {
            self.wait_new(PATIENCE, &format!("{kind} number {count} at {}", path.display()), matches);
        }
    }

    /// Everything received so far that matches.
    pub fn seen(&mut self, matches: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.seen.extend(self.events.try_iter());
        self.seen.iter().filter(|event| matches(event)).cloned().collect()
    }

    /// Everything that matches, up to an event whose cause lies after this call: another file system is mounted and its
    /// daemon exits without unmounting. That death is held back for the agent's grace period, so that whatever was held
    /// back before is told before.
    ///
    /// # Panics
    /// If that event does not come.
    pub fn seen_until_sentinel(&mut self, matches: impl Fn(&Event) -> bool) -> Vec<Event> {
        let name = format!("sentinel-{}", SERIAL.fetch_add(1, Ordering::Relaxed));
        let sentinel = Steerfs::mount(self.sandbox, &name, &[]);
        let path = sentinel.mount_point().to_owned();
        self.wait("ready", &path);
        sentinel.send(&Command::Exit { code: 0, unmount: false });
        self.wait("dead", &path);
        self.seen(|event| !event.is_at(&path) && matches(event))
    }

    /// The samples of one metric that have these labels.
    ///
    /// # Panics
    /// If the agent does not answer.
    pub fn metrics(&self, name: &str, labels: &[(&str, &str)]) -> Vec<Sample> {
        let (status, text) = http::get(self.address, "/metrics").expect("GET /metrics");
        assert_eq!(status, 200, "{text}");
        let wanted: BTreeMap<_, _> = labels.iter().copied().collect();
        let fits = |sample: &Sample| {
            sample.name == name && wanted.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value))
        };
        http::samples(&text).into_iter().filter(fits).collect()
    }

    /// The sum of those samples.
    ///
    /// # Panics
    /// As [`Self::metrics`].
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.metrics(name, labels).iter().map(|sample| sample.value).sum()
    }

    /// Fails the test with all that is known.
    ///
    /// # Panics
    /// Always.
    pub fn fail(&mut self, message: &str) -> ! {
        self.seen.extend(self.events.try_iter());
        let omitted = self.seen.len().saturating_sub(SHOWN_EVENTS);
        let events: Vec<String> = self.seen.iter().skip(omitted).map(ToString::to_string).collect();
        panic!(
            "{message}\n--- events, {omitted} earlier ones left out:\n{}\n--- log:\n{}",
            events.join("\n"),
            tail(&self.log)
        )
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        process::signal(self.child.id(), Signal::SIGTERM);
        let ended = wait::until_within(Duration::from_secs(5), || self.child.try_wait().ok().flatten());
        if ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            assert!(thread::panicking(), "the agent did not end within 5 s of SIGTERM\n{}", tail(&self.log));
        }
    }
}

/// Where the program under test is.
///
/// # Panics
/// If it is nowhere.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(path) = std::env::var_os(BINARY) {
            return path.into();
        }
        let path = built("fuse-detector");
        assert!(path.exists(), "{} is missing: run `cargo build`, or name it in {BINARY}", path.display());
        path
    })
}

/// A program of this workspace, built beside the running test program (`target/PROFILE/deps/TEST`).
///
/// # Panics
/// If the test program is not where Cargo puts it.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test program");
    test.parent().and_then(Path::parent).expect("target/PROFILE").join(name)
}

fn receive(stdout: ChildStdout) -> Receiver<Event> {
    let (sender, events) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            match Event::parse(&line) {
                Ok(event) => {
                    if sender.send(event).is_err() {
                        return;
                    }
                }
                // The channel closes, and whoever waits fails.
                Err(error) => return eprintln!("not JSON on the agent's standard output: {error}: {line}"),
            }
        }
    });
    events
}

fn wait_ready(child: &mut Child, log: &Path) -> SocketAddr {
    let ready = wait::until_within(PATIENCE, || {
        if let Ok(Some(status)) = child.try_wait() {
            panic!("the agent did not start: {status}\n{}", tail(log));
        }
        let address = listening(child.id())?;
        matches!(http::get(address, "/readyz"), Ok((200, _))).then_some(address)
    });
    ready.unwrap_or_else(|| {
        let _ = child.kill();
        let _ = child.wait();
        panic!("the agent did not become ready\n{}", tail(log))
    })
}

/// The TCP address that a process listens on: its socket's inode among `/proc/PID/fd`, looked up in `/proc/net/tcp`.
fn listening(pid: u32) -> Option<SocketAddr> {
    const LISTEN: &str = "0A";
    let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let sockets: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ours = sockets.contains(&format!("socket:[{}]", fields.get(9)?));
        let port = fields.get(1)?.split_once(':')?.1;
        let port = u16::from_str_radix(port, 16).ok().filter(|_| ours && fields.get(3) == Some(&LISTEN))?;
        Some(SocketAddr::from(([127, 0, 0, 1], port)))
    })
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n")
}
