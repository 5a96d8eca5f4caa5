use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid, setsid};

use super::mark::Mark;
use super::stderr::Stderr;
use super::{cgroup, privileges};
use crate::model::Mount;
use crate::mounts::{Limit, Privileges};
use crate::recovery::{Bring, LaunchSpec, RecoverJob};

/// What a process takes on between fork and exec, in this order: the cgroup and the OOM score need the launcher's rights.
struct Identity {
    cgroup_procs: Vec<PathBuf>,
    oom_score_adj: Option<i32>,
    umask: Option<u32>,
    limits: Vec<Limit>,
    privileges: Option<Privileges>,
    ids: Option<(Vec<Gid>, Gid, Uid)>,
}

/// What was started.
pub(super) struct Started {
    pub child: Child,
    /// For messages.
    pub name: String,
    /// What is not as it was.
    pub notes: Vec<String>,
}

/// Starts what the job wants started.
pub(super) fn start(job: &RecoverJob, mark: &Mark, stderr: &Stderr) -> io::Result<Started> {
    let mountinfo = std::fs::read("/proc/self/mountinfo")?;
    let (mut command, identity, notes) = match &job.bring {
        Bring::Respawn(spec) => respawn(spec, &mountinfo),
        Bring::Command { argv, cgroups, timeout: _ } => {
            let cgroup::Places { procs: cgroup_procs, notes } = cgroup::prepare(cgroups, &mountinfo);
            let (limits, ids, privileges) = (vec![], None, None);
            let identity = Identity { cgroup_procs, oom_score_adj: None, umask: None, limits, privileges, ids };
            (policy_command(argv, job.dead.first())?, identity, notes)
        }
        Bring::Existing(_) => return Err(io::ErrorKind::Unsupported.into()),
    };
    command.envs(mark.variables());
    let name = PathBuf::from(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr.writer()?);
    // SAFETY: the launcher has one thread, so between fork and exec everything may be done that one process may do.
    unsafe { command.pre_exec(move || identity.take_on()) };
    Ok(Started { child: command.spawn()?, name, notes })
}

fn respawn(spec: &LaunchSpec, mountinfo: &[u8]) -> (Command, Identity, Vec<String>) {
    let LaunchSpec { exe, argv, env, cwd, uid, gid, groups, cgroups, oom_score_adj, umask, limits, privileges } = spec;
    // After an upgrade of its package the kernel shows the old program's name with this behind it (proc_pid_exe(5)); what
    // is there now is the new one.
    let exe = exe.as_os_str().as_bytes();
    let exe = exe.strip_suffix(b" (deleted)").unwrap_or(exe);
    let mut command = Command::new(std::ffi::OsStr::from_bytes(exe));
    let mut argv = argv.iter();
    if let Some(name) = argv.next() {
        command.arg0(name);
    }
    command.args(argv).current_dir(cwd).env_clear().envs(env.iter().filter_map(variable));
    let cgroup::Places { procs: cgroup_procs, notes } = cgroup::prepare(cgroups, mountinfo);
    let identity = Identity {
        cgroup_procs,
        oom_score_adj: *oom_score_adj,
        umask: *umask,
        limits: limits.clone(),
        privileges: *privileges,
        ids: Some((groups.iter().copied().map(Gid::from_raw).collect(), Gid::from_raw(*gid), Uid::from_raw(*uid))),
    };
    (command, identity, notes)
}

/// Splits `NAME=value`. What has no `=`, or an empty name, can't be passed on.
fn variable(entry: &OsString) -> Option<(OsString, OsString)> {
    let bytes = entry.as_bytes();
    let at = bytes.iter().position(|&byte| byte == b'=').filter(|at| *at > 0)?;
    let (name, value) = bytes.split_at_checked(at)?;
    let os = |bytes| std::ffi::OsStr::from_bytes(bytes).to_owned();
    Some((os(name), os(value.get(1..)?)))
}

fn policy_command(argv: &[OsString], dead: Option<&Mount>) -> io::Result<Command> {
    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(Mount { mount_point, source, fs_type, .. }) = dead {
        command
            .env("FUSE_DETECTOR_MOUNT_POINT", mount_point)
            .env("FUSE_DETECTOR_SOURCE", source)
            .env("FUSE_DETECTOR_FS_TYPE", fs_type);
    }
    Ok(command)
}

impl Identity {
    fn take_on(&self) -> io::Result<()> {
        let Self { cgroup_procs, oom_score_adj, umask, limits, privileges, ids } = self;
        // A session of its own: no terminal's signal meant for the agent reaches it.
        setsid()?;
        for procs in cgroup_procs {
            cgroup::enter(procs)?;
        }
        if let Some(score) = oom_score_adj {
            std::fs::write("/proc/self/oom_score_adj", score.to_string())?;
        }
        if let Some(umask) = umask {
            nix::sys::stat::umask(Mode::from_bits_truncate(*umask));
        }
        limits.iter().for_each(set_limit);
        if let Some(privileges) = privileges {
            privileges::before_ids(privileges)?;
        }
        if let Some((groups, gid, uid)) = ids {
            setgroups(groups)?;
            setresgid(*gid, *gid, *gid)?;
            setresuid(*uid, *uid, *uid)?;
        }
        if let Some(privileges) = privileges {
            privileges::after_ids(privileges, Uid::effective().is_root())?;
        }
        Ok(())
    }
}

/// A limit above the launcher's own is refused without CAP_SYS_RESOURCE: the daemon then has the launcher's.
fn set_limit(limit: &Limit) {
    let value = |limit: Option<u64>| limit.unwrap_or(libc::RLIM_INFINITY);
    let limits = libc::rlimit { rlim_cur: value(limit.soft), rlim_max: value(limit.hard) };
    // SAFETY: setrlimit(2) reads the structure and changes nothing but the limits of this process.
    unsafe { libc::setrlimit(limit.resource, &raw const limits) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_entries_are_split_at_the_first_equals_sign() {
        let split = |text: &str| variable(&text.into());
        assert_eq!(split("A=b=c"), Some(("A".into(), "b=c".into())));
        assert_eq!(split("A="), Some(("A".into(), "".into())));
        assert_eq!(split("=x"), None);
        assert_eq!(split("plain"), None);
    }
}
