//! `heal`: one recovery, now, by hand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::args::{HealArgs, Output};
use super::style::Style;
use super::{Ui, place};
use crate::model::{DeviceNumber, Mount};
use crate::mounts::{NamespaceMounts, Scanner};
use crate::policy::{Policy, StrategyChoice, Subject};
use crate::recovery::{Bring, Features, Placement, Progress, RecoverJob, Replacement, plan};
use crate::text;
use crate::worker::{Pool, PoolConfig, ProbeOutcome, ProbeTarget};

/// How long the file system may take for a sign of life before it counts as hung, which is no case for `heal`.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// How long a command given here may take until its mount serves: the policy's default (`commandTimeout`).
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the mount calls may take on top.
const HEAL_DEADLINE: Duration = Duration::from_secs(30);

const FAILED: u8 = 1;
const REFUSED: u8 = 3;

/// What became of one mount.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    mount_point: String,
    /// The mount point is not UTF-8, and written with escapes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    escaped: bool,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Why nothing is done, with the exit code.
struct Stop(u8, String);

/// Carries out the command and gives the exit code.
///
/// # Errors
/// What went wrong, for people.
pub fn main(arguments: HealArgs, ui: &Ui) -> Result<u8, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the event loop can't be made: {error}"))?;
    match runtime.block_on(heal(&arguments, ui)) {
        Ok(code) => Ok(code),
        // For machines: no mount was changed. The reason is for people.
        Err(Stop(0, why)) => match arguments.output.output {
            Output::Json => print_lines(&[], Output::Json).map(|()| 0),
            Output::Text => super::print(&format!("{why}\n")).map(|_| 0),
        },
        Err(Stop(code, why)) => {
            eprintln!("{}: {why}", ui.error.paint(Style::Bad, if code == REFUSED { "refused" } else { "error" }));
            Ok(code)
        }
    }
}

async fn heal(arguments: &HealArgs, ui: &Ui) -> Result<u8, Stop> {
    let failed = |error: String| Stop(FAILED, error);
    let own =
        Scanner::default().scan_own().map_err(|error| failed(format!("the mount table can't be read: {error}")))?;
    let mount = find(&own, &arguments.path)?;
    let pool = Pool::start(PoolConfig::default()).map_err(|error| failed(format!("no worker process: {error}")))?;
    let shown = text::printable(mount.mount_point.as_os_str());
    match pool.probe(ProbeTarget::from(mount), ANSWER_DEADLINE).await {
        ProbeOutcome::Dead { .. } => {}
        ProbeOutcome::Alive => return Err(Stop(0, format!("{shown} is alive: there is nothing to heal"))),
        ProbeOutcome::TimedOut => {
            let why = "does not answer, but its connection is not dead: slow or hung is no reason to replace it; \
                       end its daemon, or write 1 to the connection's `abort` file, and heal then";
            return Err(Stop(REFUSED, format!("{shown} {why}")));
        }
        ProbeOutcome::Gone => {
            return Err(failed(format!("{shown} was unmounted meanwhile, or another mount covers it")));
        }
        ProbeOutcome::Denied => return Err(failed(format!("{shown} may not be asked: run as root"))),
        ProbeOutcome::Failed(error) => return Err(failed(format!("{shown} can't be asked: {error}"))),
    }
    let dead: Vec<_> = own.mounts.iter().filter(|other| other.device == mount.device).cloned().collect();
    let (bring, time) = bring(arguments, &own, mount, &pool).await?;
    if arguments.dry_run {
        return show_plan(&own, &dead, &bring, arguments.output.output).map_err(failed);
    }
    let job =
        RecoverJob { bring, dead, launched: Vec::new(), features: Features::detect(), deadline: time + HEAL_DEADLINE };
    carry_out(&pool, job, arguments.output.output, ui).await.map_err(failed)
}

/// The path as the mount table would show it.
fn resolve(own: &NamespaceMounts, path: &Path) -> Result<PathBuf, Stop> {
    let is_fuse = |place: &Path| own.mounts.iter().any(|mount| mount.mount_point == place);
    place::resolve(path, is_fuse).map_err(|error| Stop(FAILED, error.to_string()))
}

/// The FUSE mount that the path is on, without looking the path up there: that could block.
fn find<'m>(own: &'m NamespaceMounts, path: &Path) -> Result<&'m Mount, Stop> {
    let path = resolve(own, path)?;
    let on_it = own.mounts.iter().filter(|mount| path.starts_with(&mount.mount_point));
    // Of several at one place, the one that no other hangs on. Their order in mountinfo says nothing (MOVE_MOUNT_BENEATH).
    let covered = |mount: &Mount| own.children.iter().any(|child| child.covers(mount));
    let deepest = on_it.max_by_key(|mount| (mount.mount_point.as_os_str().len(), !covered(mount)));
    deepest.ok_or_else(|| {
        let path = text::printable(path.as_os_str());
        Stop(FAILED, format!("{path} is on no FUSE mount of this mount namespace; `fuse-detector mounts` lists them"))
    })
}

/// Where the replacement comes from, and how long that may take.
async fn bring(
    arguments: &HealArgs,
    own: &NamespaceMounts,
    dead: &Mount,
    pool: &Pool,
) -> Result<(Bring, Duration), Stop> {
    if !arguments.daemon.is_empty() {
        let command = Bring::Command { argv: arguments.daemon.clone(), timeout: COMMAND_TIMEOUT, cgroups: Vec::new() };
        return Ok((command, COMMAND_TIMEOUT));
    }
    if let Some(from) = &arguments.from {
        let from = resolve(own, from)?;
        let mount = own.mounts.iter().rev().find(|mount| mount.mount_point == from && mount.device != dead.device);
        let mount = mount.ok_or_else(|| {
            Stop(FAILED, format!("{} is no other FUSE mount point", text::printable(from.as_os_str())))
        })?;
        return match pool.probe(ProbeTarget::from(mount), ANSWER_DEADLINE).await {
            ProbeOutcome::Alive => Ok((Bring::Existing(mount.clone()), Duration::ZERO)),
            other => Err(Stop(FAILED, format!("{} does not serve: {other:?}", text::printable(from.as_os_str())))),
        };
    }
    by_policy(arguments.policy.as_deref(), own, dead, pool).await
}

async fn by_policy(
    file: Option<&Path>,
    own: &NamespaceMounts,
    dead: &Mount,
    pool: &Pool,
) -> Result<(Bring, Duration), Stop> {
    let policy = match file {
        Some(file) => Policy::load(file).map_err(|error| Stop(FAILED, error.to_string()))?,
        None => Policy::builtin(),
    };
    let subject = Subject { mount_point: &dead.mount_point, fs_type: &dead.fs_type, source: &dead.source };
    if let StrategyChoice::Command(command) = &policy.decide(&subject).strategy {
        let timeout = command.timeout;
        return Ok((Bring::Command { argv: command.argv.clone(), timeout, cgroups: Vec::new() }, timeout));
    }
    // Type and source alone don't tell one volume from another (two buckets can have one source name): only what hangs where
    // the dead one does was meant to replace it.
    let places: Vec<_> = own.mounts.iter().filter(|mount| mount.device == dead.device && mount.is_whole()).collect();
    let at_its_place = |mount: &Mount| places.iter().any(|dead| dead.mount_point == mount.mount_point);
    let same = own.mounts.iter().filter(|mount| {
        mount.device != dead.device
            && mount.is_whole()
            && at_its_place(mount)
            && (&mount.fs_type, &mount.source) == (&dead.fs_type, &dead.source)
    });
    for mount in same {
        if pool.probe(ProbeTarget::from(mount), ANSWER_DEADLINE).await == ProbeOutcome::Alive {
            return Ok((Bring::Existing(mount.clone()), Duration::ZERO));
        }
    }
    let why = "nothing to replace it with: no healthy mount of its type and source is at the same place, and how its daemon \
               was started is known only to an agent that saw it run; name the command after `--`, or a healthy mount \
               with --from";
    Err(Stop(REFUSED, why.to_owned()))
}

fn show_plan(own: &NamespaceMounts, dead: &[Mount], bring: &Bring, output: Output) -> Result<u8, String> {
    let (first, replacement) = match bring {
        Bring::Existing(mount) => {
            (format!("use the mount at {}", text::printable(mount.mount_point.as_os_str())), Replacement::from(mount))
        }
        Bring::Command { argv, timeout, .. } => {
            let words: Vec<_> = argv.iter().map(|word| text::printable(word)).collect();
            let first = format!("run `{}` and wait {} s at most for its mount", words.join(" "), timeout.as_secs());
            let whole = dead.iter().find(|mount| mount.is_whole()).or(dead.first());
            // Its device is not known yet: one that nothing has.
            let device = DeviceNumber { major: 0, minor: 0 };
            let replacement =
                whole.map(|mount| Replacement { device, root: PathBuf::from("/"), ..Replacement::from(mount) });
            (first, replacement.ok_or("nothing is dead")?)
        }
        Bring::Respawn(_) => return Err("a daemon can't be started again from here".to_owned()),
    };
    let made = plan(dead, &own.mounts, &own.children, &replacement, Features::detect());
    let mut lines: Vec<_> = made.steps.iter().map(|step| line(&step.dead, placement(&step.placement), None)).collect();
    lines.extend(made.refused.iter().map(|refused| line(&refused.mount, "refused", Some(refused.why.to_string()))));
    let code = if made.refused.is_empty() { 0 } else { REFUSED };
    if let Output::Text = output {
        super::print(&format!("{first}\n"))?;
    }
    print_lines(&lines, output)?;
    Ok(code)
}

const fn placement(placement: &Placement) -> &'static str {
    match placement {
        Placement::Beneath { .. } => "move the replacement beneath, detach the dead one",
        Placement::BecomeGuard { .. } => "put the replacement on top, keep the dead one below as a guard",
        Placement::OnGuard { .. } => "detach the dead one, put the replacement on the guard below",
        Placement::Served { .. } => "nothing: a healthy mount covers it already",
        Placement::Uncover => "detach the dead one: the replacement is below it already",
    }
}

async fn carry_out(pool: &Pool, job: RecoverJob, output: Output, ui: &Ui) -> Result<u8, String> {
    let mut steps = pool.recover(job);
    let (mut lines, mut code) = (Vec::new(), 0);
    while let Some(progress) = steps.recv().await {
        match progress {
            Progress::Isolated { .. } => {}
            Progress::Noted { what } => eprintln!("{}", text::printable(what.as_ref())),
            Progress::Launched { pid } => eprintln!("started process {pid}"),
            Progress::Ready { device, .. } => eprintln!("connection {device} serves"),
            Progress::Healed { mount, .. } => lines.push(line(&mount, "healed", None)),
            Progress::Gone { mount } => lines.push(line(&mount, "gone", None)),
            Progress::Failed { mount, error, refused } => {
                code = if refused && code != FAILED { REFUSED } else { FAILED };
                match mount {
                    Some(mount) => lines.push(line(&mount, if refused { "refused" } else { "failed" }, Some(error))),
                    None => eprintln!("{}: {error}", ui.error.paint(Style::Bad, "error")),
                }
            }
            Progress::Finished => break,
        }
    }
    print_lines(&lines, output)?;
    Ok(code)
}

fn line(mount: &Mount, outcome: &'static str, error: Option<String>) -> Line {
    let (mount_point, escaped) = text::escape(mount.mount_point.as_os_str());
    Line { mount_point, escaped, outcome, error }
}

fn print_lines(lines: &[Line], output: Output) -> Result<(), String> {
    let text = match output {
        Output::Json => serde_json::to_string(lines).map_err(|error| error.to_string())? + "\n",
        Output::Text => {
            let row = |line: &Line| {
                let error = line.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
                format!("{}  {}{error}\n", text::printable(line.mount_point.as_ref()), line.outcome)
            };
            lines.iter().map(row).collect()
        }
    };
    super::print(&text).map(|_| ())
}
