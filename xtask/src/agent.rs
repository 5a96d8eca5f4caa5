//! The agent as a child: started with a policy, its lines on standard output read as they come.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{POLL, Running};
use crate::transition::Line;

/// For the agent to load its kernel programs and look at every mount namespace of a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// For the agent to end after SIGTERM: it has to do nothing but stop its workers.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// For one HTTP answer on the loopback device.
const HTTP_PATIENCE: Duration = Duration::from_secs(2);

/// How many of the log's last lines are shown when something failed.
const LOG_TAIL: usize = 40;

/// A running agent. Dropping it kills it.
pub struct Agent {
    running: Running,
    lines: Receiver<Result<Line, String>>,
    address: SocketAddr,
    log: PathBuf,
}

/// How the agent is started.
pub struct Options<'a> {
    /// The program.
    pub program: &'a Path,
    /// Where its policy and its log are written.
    pub directory: &'a Path,
    /// `auto`, `tracepoint`, `portable`
    pub backend: &'a str,
    /// The policy's text.
    pub policy: &'a str,
    /// Further arguments.
    pub arguments: &'a [&'a str],
}

impl Agent {
    /// Starts it and waits until it says that it is ready (`/readyz`).
    ///
    /// # Errors
    /// It ended, or was not ready in time; with the end of its log.
    pub fn start(options: &Options<'_>) -> Result<Self> {
        let Options { program, directory, backend, policy, arguments } = options;
        let policy_file = directory.join("policy.yaml");
        fs::write(&policy_file, policy).context("cannot write the policy")?;
        let log = directory.join("agent.log");
        let address = free_address()?;
        let mut command = Command::new(program);
        command.args(["run", "--output", "json", "--log-format", "text", "--backend", backend]);
        command.arg("--policy").arg(&policy_file).arg("--listen").arg(address.to_string()).args(*arguments);
        let stderr = File::create(&log).context("cannot make the agent's log")?;
        let mut running = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr))?;
        let output = running.child().stdout.take().context("the agent's output is not piped")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || read_lines(output, &sender));
        let mut agent = Self { running, lines, address, log };
        agent.wait_until_ready().map_err(|error| agent.explain(error))?;
        Ok(agent)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if let Some(status) = self.running.ended()? {
                bail!("the agent ended while it started: {status}");
            }
            match http_status(self.address, "/readyz") {
                Ok(200) => return Ok(()),
                // Not listening yet, or still starting.
                Ok(503) | Err(_) => {}
                Ok(other) => bail!("the agent answered /readyz with {other}"),
            }
            ensure!(Instant::now() < deadline, "the agent was not ready within {START_PATIENCE:?}");
            sleep(POLL);
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// The next line, if one comes before `deadline`.
    ///
    /// # Errors
    /// The agent ended, or wrote a line that the contract does not know.
    pub fn next(&self, deadline: Instant) -> Result<Option<Line>> {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(line)) => Ok(Some(line)),
            Ok(Err(malformed)) => Err(self.explain(anyhow::anyhow!(malformed))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.explain(anyhow::anyhow!("the agent ended"))),
        }
    }

    /// Waits for a line; those before it are passed over.
    ///
    /// # Errors
    /// As [`Agent::next`], and when no such line came within `patience`. `what` says what was waited for.
    pub fn wait(&self, what: &str, patience: Duration, wanted: impl Fn(&Line) -> bool) -> Result<Line> {
        let deadline = Instant::now() + patience;
        loop {
            match self.next(deadline).with_context(|| format!("while waiting for {what}"))? {
                Some(line) if wanted(&line) => return Ok(line),
                Some(_) => {}
                None => return Err(self.explain(anyhow::anyhow!("waited {patience:?} for {what} in vain"))),
            }
        }
    }

    /// Ends it in good order.
    ///
    /// # Errors
    /// It did not end after SIGTERM (and is killed).
    pub fn stop(mut self) -> Result<()> {
        ensure!(self.running.terminate(STOP_PATIENCE)?, "the agent did not end within {STOP_PATIENCE:?} after SIGTERM");
        Ok(())
    }

    /// The error, with the end of the agent's log.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let log = fs::read_to_string(&self.log).unwrap_or_else(|error| format!("(cannot be read: {error})"));
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LOG_TAIL)..).unwrap_or_default().join("\n");
        anyhow::anyhow!("{error:#}\nThe agent's log ends with:\n{tail}")
    }
}

fn read_lines(output: ChildStdout, sender: &Sender<Result<Line, String>>) {
    for line in BufReader::new(output).lines() {
        let parsed = match line {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| format!("the agent wrote a line that the contract does not know ({error}): {text}")),
            Err(error) => Err(format!("the agent's output cannot be read: {error}")),
        };
        // The receiver is gone when the agent is being dropped.
        if sender.send(parsed).is_err() {
            return;
        }
    }
}

/// A free port on the loopback device. It is free only for now, but the kernel gives out another one to whoever asks
/// next, so that two agents started at the same time don't meet.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on the loopback device")?;
    listener.local_addr().context("cannot tell the free port")
}

/// The status code of a GET request.
fn http_status(address: SocketAddr, path: &str) -> Result<u16> {
    let mut stream = TcpStream::connect_timeout(&address, HTTP_PATIENCE)?;
    stream.set_read_timeout(Some(HTTP_PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let code = answer.split(' ').nth(1).context("no HTTP answer")?;
    code.parse().with_context(|| format!("{code:?} is no HTTP status"))
}
