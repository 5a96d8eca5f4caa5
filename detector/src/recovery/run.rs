//! A worker's half of a recovery: brings the replacement, plans with a fresh look at the mount table, and carries it out.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use super::error::{RecoverError, Stage};
use super::heal::{CloneSource, MountedHere, Outcome, heal};
use super::launch::former::{self, Former};
use super::launch::{Brought, Launcher, Mark, There};
use super::plan::{Plan, Replacement, is_same, plan};
use super::sys::{self, Looked, MountTarget};
use super::wire::ProgressForm;
use super::{Bring, Features, RecoverJob, table};
use crate::model::{Boottime, DeviceNumber, Mount};
use crate::mounts::mountinfo::Parsed;
use crate::mounts::{newest_mount, own_namespace};

/// Runs a job. Tells its progress, [`ProgressForm::Finished`] last.
pub(crate) fn run(job: &RecoverJob, report: &mut dyn FnMut(ProgressForm)) {
    if let Err(error) = bring_and_heal(job, report) {
        report(failed(None, &error));
    }
    report(ProgressForm::Finished);
}

fn bring_and_heal(job: &RecoverJob, report: &mut dyn FnMut(ProgressForm)) -> Result<(), RecoverError> {
    let deadline = Instant::now() + job.deadline;
    if let Bring::Existing(mount) = &job.bring {
        return heal_from_here(job, &job.dead, mount, report);
    }
    // Asked first, so that what is found to be dead is not newer.
    let newest = newest_mount();
    let left = to_launch(job, report)?;
    if left.is_empty() {
        return Ok(());
    }
    let launch = RecoverJob { dead: left, ..job.clone() };
    let namespace = own_namespace().map_err(RecoverError::kernel(Stage::ReadMounts, "/proc/thread-self/ns/mnt"))?;
    let mark = Mark::new(namespace, launch.connections(), newest);
    let mut launcher = Launcher::start(&launch, &mark, deadline)?;
    let healed = match launcher.wait(&launch, deadline, report)? {
        Brought::Here(mount) => {
            // A number is one file system's at a time: if it has that of the dead one, nothing of that is mounted any more.
            let (gone, dead): (Vec<_>, Vec<_>) = launch.dead.into_iter().partition(|dead| dead.device == mount.device);
            gone.iter().filter_map(|dead| index(job, dead)).for_each(|mount| report(ProgressForm::Gone { mount }));
            heal_from_here(job, &dead, &mount, report)?;
            true
        }
        Brought::There(there) => heal_from_there(job, there, &mut launcher, report)?,
    };
    // Otherwise the launcher ends what it launched: a daemon whose mounts nobody sees is of no use.
    if healed { launcher.release() } else { Ok(()) }
}

/// The dead mounts for whose connections something has to be launched, once what former launches have left is out of the way.
fn to_launch(job: &RecoverJob, report: &mut dyn FnMut(ProgressForm)) -> Result<Vec<Mount>, RecoverError> {
    let table = read_table()?;
    let left = still_dead(job, &table, report)?;
    if left.is_empty() {
        return Ok(left);
    }
    let formers = former::find(&left, &table).map_err(RecoverError::kernel(Stage::Launch, "/proc"))?;
    let left = without_served(job, &left, &table, &formers, report)?;
    if !left.is_empty() {
        former::make_way(&left, &table, &formers, &job.launched)
            .into_iter()
            .for_each(|what| report(ProgressForm::Noted { what }));
    }
    Ok(left)
}

/// The dead mounts of connections that nobody has replaced yet. The others are gone, or somebody was faster, or none of their
/// mounts may be touched, and they are dealt with.
fn still_dead(
    job: &RecoverJob,
    table: &Parsed,
    report: &mut dyn FnMut(ProgressForm),
) -> Result<Vec<Mount>, RecoverError> {
    let mut left = Vec::new();
    for connection in job.connections() {
        let dead = job.dead_of(connection);
        if let Some(mount) = dead.iter().find_map(|dead| served_by(dead, table)) {
            heal_from_here(job, &dead, mount, report)?;
        } else if let Some(replacement) = dead.first().map(like_before) {
            let plan = plan_with(table, &dead, &replacement, job.features);
            if plan.steps.is_empty() {
                // Whatever was launched, nothing could be done with it.
                carry_out(job, &plan, &replacement, &mut Fetched(VecDeque::new()), report);
            } else {
                left.extend(dead);
            }
        }
    }
    Ok(left)
}

/// What the same daemon would mount: its device is not known yet, and one that nothing has.
fn like_before(dead: &Mount) -> Replacement {
    Replacement { device: DeviceNumber { major: 0, minor: 0 }, root: "/".into(), ..Replacement::from(dead) }
}

/// Without those that can be healed from a daemon which was launched for them by an attempt that was cut off: a second one
/// would work on the same data.
fn without_served(
    job: &RecoverJob,
    left: &[Mount],
    table: &Parsed,
    formers: &[Former],
    report: &mut dyn FnMut(ProgressForm),
) -> Result<Vec<Mount>, RecoverError> {
    let mut unserved = Vec::new();
    for connection in job.connections() {
        let dead: Vec<_> = left.iter().filter(|dead| dead.device == connection).cloned().collect();
        match former::serving(&dead, table, formers) {
            Some((mount, pid)) => {
                let (dead_number, device, at) = (connection.to_kernel(), mount.device.to_kernel(), Boottime::now().0);
                report(ProgressForm::Ready { dead: dead_number, device, at, pid: Some(pid) });
                heal_from_here(job, &dead, &mount, report)?;
            }
            None => unserved.extend(dead),
        }
    }
    Ok(unserved)
}

/// The living mount of the same file system on top of a dead one.
fn served_by<'t>(dead: &Mount, table: &'t Parsed) -> Option<&'t Mount> {
    table.mounts.iter().find(|mount| {
        mount.parent == dead.id
            && mount.mount_point == dead.mount_point
            && mount.device != dead.device
            && (&mount.fs_type, &mount.source) == (&dead.fs_type, &dead.source)
    })
}

fn read_table() -> Result<Parsed, RecoverError> {
    table::own().map_err(RecoverError::kernel(Stage::ReadMounts, "/proc/self/mountinfo"))
}

fn heal_from_here(
    job: &RecoverJob,
    dead: &[Mount],
    mount: &Mount,
    report: &mut dyn FnMut(ProgressForm),
) -> Result<(), RecoverError> {
    let replacement = Replacement::from(mount);
    let mut plan = plan_with(&read_table()?, dead, &replacement, job.features);
    // Where it lies on a dead mount it is found again by that, after a cut: so what is done there comes last. Where a dead mount
    // covers it, it can't be reached before that is taken away.
    let is_visible = matches!(sys::look_at(&MountTarget::from(mount)), Ok(Looked::Same(_)));
    plan.steps.sort_by_key(|step| is_visible && step.dead.mount_point == mount.mount_point);
    carry_out(job, &plan, &replacement, &mut MountedHere::new(mount), report);
    Ok(())
}

/// Heals each connection with its own replacement; what goes wrong with one is no matter of the others. Whether at least
/// one mount shows its replacement now.
fn heal_from_there(
    job: &RecoverJob,
    there: There,
    launcher: &mut Launcher,
    report: &mut dyn FnMut(ProgressForm),
) -> Result<bool, RecoverError> {
    let table = read_table()?;
    // All clones are taken before the first mount is moved: where the mount point's parent is shared, detaching the
    // dead mount here takes the daemon's own copy away from its namespace, too, and nothing can be cloned then.
    let mut ready = Vec::new();
    for (dead, mount) in there.replacements {
        let replacement = Replacement::from(&mount);
        let plan = plan_with(&table, &job.dead_of(dead), &replacement, job.features);
        let clones = fetch(&plan, dead, launcher);
        ready.push((plan, replacement, clones));
    }
    let mut healed = false;
    for (plan, replacement, mut clones) in ready {
        healed |= carry_out(job, &plan, &replacement, &mut clones, report);
    }
    for (dead, error) in there.missing {
        let error = RecoverError::Launcher(error);
        job.dead_of(dead).iter().for_each(|mount| report(failed(index(job, mount), &error)));
    }
    Ok(healed)
}

fn plan_with(table: &Parsed, dead: &[Mount], replacement: &Replacement, features: Features) -> Plan {
    // Flags and propagation as they are now: a mount can have been remounted since it was last looked at.
    let fresh = |dead: &Mount| {
        let now = table.mounts.iter().find(|mount| is_same(mount, dead));
        now.map_or_else(|| dead.clone(), |now| Mount { unique_id: dead.unique_id, ..now.clone() })
    };
    let dead: Vec<_> = dead.iter().map(fresh).collect();
    let mut plan = plan(&dead, &table.mounts, &table.children, replacement, features);
    // From one that shows all of it the others can be healed after a cut.
    plan.steps.sort_by_key(|step| (step.placement.relative().is_some(), !step.dead.is_whole()));
    plan
}

/// Which of the job's mounts it is.
fn index(job: &RecoverJob, mount: &Mount) -> Option<usize> {
    job.dead.iter().position(|dead| is_same(dead, mount))
}

/// Whether at least one mount shows the replacement now.
fn carry_out(
    job: &RecoverJob,
    plan: &Plan,
    replacement: &Replacement,
    source: &mut dyn CloneSource,
    report: &mut dyn FnMut(ProgressForm),
) -> bool {
    let mut healed = false;
    let index = |mount: &Mount| index(job, mount);
    for mount in plan.gone.iter().filter_map(index) {
        report(ProgressForm::Gone { mount });
    }
    for refused in &plan.refused {
        report(failed(index(&refused.mount), &RecoverError::from(refused.why.clone())));
    }
    for step in &plan.steps {
        let outcome = heal(step, replacement, source);
        healed |= matches!(outcome, Ok(Outcome::Healed { .. }));
        for mount in step.above.iter().chain([&step.dead]).filter_map(index) {
            report(match &outcome {
                Ok(Outcome::Healed { device, at }) => {
                    ProgressForm::Healed { mount, device: device.to_kernel(), at: at.0 }
                }
                Ok(Outcome::Gone) => ProgressForm::Gone { mount },
                Err(error) => failed(Some(mount), error),
            });
        }
    }
    healed
}

fn failed(mount: Option<usize>, error: &RecoverError) -> ProgressForm {
    ProgressForm::Failed { mount, error: error.to_string(), refused: matches!(error, RecoverError::Refused(_)) }
}

/// Clones in the order of the plan's steps.
struct Fetched(VecDeque<Result<(OwnedFd, bool), RecoverError>>);

fn fetch(plan: &Plan, dead: DeviceNumber, launcher: &mut Launcher) -> Fetched {
    let steps = plan.steps.iter().filter_map(|step| Some((step, step.placement.relative()?)));
    Fetched(steps.map(|(step, relative)| launcher.clone_part(dead, relative, &step.dead.mount_point)).collect())
}

impl CloneSource for Fetched {
    fn clone_part(&mut self, _: &Path, mount_point: &Path) -> Result<(OwnedFd, bool), RecoverError> {
        self.0.pop_front().unwrap_or_else(|| Err(RecoverError::ReplacementGone { path: mount_point.to_owned() }))
    }
}
