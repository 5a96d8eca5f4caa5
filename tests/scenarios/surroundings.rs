//! What is not there, or not allowed: the agent, `mounts` and `doctor` say so and go on with what is left.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fuse_detector_tests::heal::ask;
use fuse_detector_tests::{Agent, Backend, Options, Sandbox, Steerfs, agent, process, wait};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use serde_json::Value;

/// As root, without the capability to mount.
const NO_MOUNT: &[&str] = &["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
/// As nobody, without any capability.
const NOBODY: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];

/// What a command printed, and its exit code.
struct Said {
    code: Option<i32>,
    output: String,
    error: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.output).unwrap_or_else(|error| panic!("{error}: {self}"))
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, output, error } = self;
        write!(f, "exit code {code:?}\n--- standard output\n{output}\n--- standard error\n{error}")
    }
}

/// Runs the program under test to its end, through other programs: their names and arguments.
fn run(sandbox: &Sandbox, wrapper: &[&str], arguments: &[&OsStr]) -> Said {
    let program = reachable(sandbox);
    let mut words = wrapper.iter().map(OsStr::new).chain([program.as_os_str()]).chain(arguments.iter().copied());
    let output = sandbox.command(words.next().expect("a program")).args(words).output().expect("run it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { code: output.status.code(), output: text(&output.stdout), error: text(&output.stderr) }
}

fn doctor(sandbox: &Sandbox, wrapper: &[&str]) -> Said {
    run(sandbox, wrapper, &["doctor".as_ref(), "--output".as_ref(), "json".as_ref()])
}

/// The state that `mounts` gives of what is mounted there.
fn state_at(sandbox: &Sandbox, wrapper: &[&str], path: &Path) -> (Option<String>, Said) {
    let said = run(sandbox, wrapper, &["mounts".as_ref(), "--output".as_ref(), "json".as_ref()]);
    assert_eq!(said.code, Some(0), "{said}");
    let listed = said.json();
    let is_there = |report: &&Value| {
        let mounts = report["mounts"].as_array().map(Vec::as_slice).unwrap_or_default();
        mounts.iter().any(|mount| mount["mountPoint"].as_str() == path.to_str())
    };
    let found = listed.as_array().and_then(|reports| reports.iter().find(is_there));
    (found.and_then(|report| report["state"].as_str()).map(str::to_owned), said)
}

/// The program where every user can run it.
fn reachable(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.join("fuse-detector");
    if !path.exists() {
        fs::copy(agent::program(), &path).expect("copy the program");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    path
}

fn hook<'v>(report: &'v Value, name: &str) -> &'v Value {
    let hooks = report["hooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    hooks.iter().find(|hook| hook["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn without_the_device_nothing_is_started_but_all_is_told() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
        let daemon = Steerfs::mount(sandbox, "mnt", &[]);
        let path = daemon.mount_point();
        agent.wait("ready", path);
        let keep = sandbox.join("null");
        let script = format!(
            "touch {keep} && mount --bind /dev/null {keep} && mount -t tmpfs none /dev && touch /dev/null && \
             mount --bind {keep} /dev/null && umount {keep}",
            keep = keep.display()
        );
        sandbox.run_command("sh", &["-c", &script]);

        let said = doctor(sandbox, &[]);
        let report = said.json();
        assert_eq!(report["healing"]["status"], "limited", "{said}");
        assert!(
            report["healing"]["why"].as_str().is_some_and(|why| why.starts_with("/dev/fuse: No such file")),
            "{said}"
        );
        assert_ne!(said.code, Some(2), "detection does not need it: {said}");
        assert_eq!(state_at(sandbox, &[], path).0.as_deref(), Some("ready"));

        daemon.kill(Signal::SIGKILL);
        agent.wait("dead", path);
        let failed = agent.wait("recoveryFailed", path);
        assert!(failed.text("/error").contains("/dev/fuse"), "what the daemon said: {failed}");
        let (state, said) = state_at(sandbox, &[], path);
        assert_eq!(state.as_deref(), Some("dead"), "{said}");
    });
}

#[test]
fn without_tracefs_nothing_is_lost() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let before = doctor(sandbox, &[]);
        assert_eq!(hook(&before.json(), "fanotify")["status"], "attached", "{before}");
        for place in ["/sys/kernel/tracing", "/sys/kernel/debug"] {
            if Path::new(place).exists() {
                sandbox.run_command("mount", &["-t", "tmpfs", "none", place]);
            }
        }
        let after = doctor(sandbox, &[]);
        assert_eq!((after.code, &after.json()["hooks"]), (before.code, &before.json()["hooks"]), "{after}");
        let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
        let daemon = Steerfs::mount(sandbox, "mnt", &[]);
        agent.wait("ready", daemon.mount_point());
        daemon.kill(Signal::SIGKILL);
        agent.wait("recovered", daemon.mount_point());
        assert_eq!(state_at(sandbox, &[], daemon.mount_point()).0.as_deref(), Some("ready"));
    });
}

/// The agent observes, and says at its start, for each death and to whoever asks that it can't heal.
#[test]
fn without_the_capability_to_mount_it_observes() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let said = doctor(sandbox, NO_MOUNT);
        assert_eq!(said.json()["healing"]["status"], "impossible", "{said}");
        assert_eq!(hook(&said.json(), "fanotify")["status"], "unsupported", "{said}");
        let readable = run(sandbox, NO_MOUNT, &["doctor".as_ref()]);
        assert!(readable.output.contains("not possible; CAP_SYS_ADMIN is missing"), "{readable}");

        let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn").through(NO_MOUNT));
        assert!(agent.log().contains("every recovery will be given up"), "{}", agent.log());
        let (code, ready) = agent.get("/readyz");
        assert_eq!((code, ready.as_str()), (200, "ok: detecting by portable; healing is not possible: no privilege\n"));
        let status: Value = serde_json::from_str(&agent.get("/status").1).expect("JSON");
        assert_eq!(status["healing"], "noPrivilege", "{status}");

        let daemon = Steerfs::mount(sandbox, "mnt", &[]);
        let path = daemon.mount_point();
        agent.wait("ready", path);
        daemon.kill(Signal::SIGKILL);
        agent.wait("dead", path);
        let failed = agent.wait("recoveryFailed", path);
        assert!(failed.text("/error").starts_with("no privilege"), "{failed}");
        assert_eq!(failed.at("/gaveUp"), &Value::Bool(true), "{failed}");
        assert_eq!(agent.seen_until_sentinel(|event| event.is("recovered", path)), []);
        assert_eq!(ask(path), Err(Errno::ENOTCONN), "the dead mount stays");
    });
}

#[test]
fn nobody_is_told_what_is_lost() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let (living, dead) = (Steerfs::mount(sandbox, "living", &[]), Steerfs::mount(sandbox, "dead", &[]));
        dead.kill(Signal::SIGKILL);
        let said = doctor(sandbox, NOBODY);
        let report = said.json();
        assert_eq!((said.code, report["backend"].as_str()), (Some(1), Some("portable")), "{said}");
        assert_eq!(hook(&report, "sched_process_exit")["status"], "refused", "{said}");
        assert!(hook(&report, "sched_process_exit")["lost"].is_string(), "{said}");
        let unheld = |held: &Value| held["held"] == false && held["for"].is_string();
        assert!(report["capabilities"].as_array().is_some_and(|all| all.iter().all(unheld)), "{said}");

        // Its own namespace is seen, and what may be asked answers.
        for (path, expected) in [(living.mount_point(), "ready"), (dead.mount_point(), "dead")] {
            let (state, said) = state_at(sandbox, NOBODY, path);
            assert_eq!(state.as_deref(), Some(expected), "{said}");
            assert!(said.error.contains("CAP_SYS_PTRACE"), "what it takes to see more: {said}");
        }

        let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn").through(NOBODY));
        assert!(agent.log().contains("every recovery will be given up"), "{}", agent.log());
        agent.wait("ready", living.mount_point());
        agent.wait("dead", dead.mount_point());
        let failed = agent.wait("recoveryFailed", dead.mount_point());
        assert!(failed.text("/error").starts_with("no privilege"), "{failed}");

        let refused = run(sandbox, NOBODY, &["run".as_ref(), "--backend".as_ref(), "tracepoint".as_ref()]);
        assert_eq!(refused.code, Some(1), "{refused}");
        assert!(refused.error.contains("CAP_BPF"), "{refused}");
    });
}

/// What is known of those that nobody asks, or that do not answer.
#[test]
fn status_tells_the_hung_from_the_unknown() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let (hung, ignored) = (Steerfs::mount(sandbox, "hung", &[]), Steerfs::mount(sandbox, "ignored", &[]));
        ignored.kill(Signal::SIGKILL);
        process::signal(hung.pid(), Signal::SIGSTOP);
        let mut client =
            sandbox.command("stat").arg("-f").arg(hung.mount_point()).stdout(Stdio::null()).spawn().unwrap();
        let options = Options::rule(sandbox, "hung", serde_json::json!({"mode": "observe"}));
        let agent = Agent::start(sandbox, &options);
        let state = |path: &Path| {
            let status: Value = serde_json::from_str(&agent.get("/status").1).expect("JSON");
            let reports = status["connections"].as_array().cloned().unwrap_or_default();
            let found = reports.into_iter().find(|report| report["mounts"][0]["mountPoint"].as_str() == path.to_str());
            found.and_then(|report| report["state"].as_str().map(str::to_owned))
        };
        let told = wait::until_within(Duration::from_secs(20), || {
            (state(hung.mount_point()).as_deref() == Some("hung")).then_some(())
        });
        let (hung_is, ignored_is) = (state(hung.mount_point()), state(ignored.mount_point()));
        let (listed, said) = state_at(sandbox, &[], hung.mount_point());
        process::signal(hung.pid(), Signal::SIGCONT);
        client.wait().unwrap();
        assert!(told.is_some(), "{hung_is:?}");
        assert_eq!((ignored_is.as_deref(), listed.as_deref()), (Some("unknown"), Some("hung")), "{said}");
        let answered = wait::until_within(Duration::from_secs(10), || {
            (state(hung.mount_point()).as_deref() != Some("hung")).then_some(())
        });
        assert!(answered.is_some(), "it answers again");
    });
}

/// Opening a FIFO waits for whoever writes into it.
#[test]
fn a_fifo_is_no_policy() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let fifo = sandbox.join("policy.yaml");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("mkfifo");
        for arguments in [&["config", "check"][..], &["run", "--policy"]] {
            let mut command = sandbox.command(agent::program());
            let mut child =
                command.args(arguments).arg(&fifo).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let ended = wait::until_within(Duration::from_secs(10), || child.try_wait().unwrap());
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert_eq!(ended.and_then(|status| status.code()), Some(1), "{arguments:?}: {said}");
            assert!(said.contains("not a regular file"), "{said}");
        }
    });
}
