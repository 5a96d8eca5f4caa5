//! A worker's half of a recovery: brings the replacement, plans with a fresh look at the mount table, and carries it out.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use super::error::{RecoverError, Stage};
use super::heal::{CloneSource, MountedHere, Outcome, heal};
use super::launch::{Brought, Launcher};
use super::plan::{Plan, Replacement, is_same, plan};
use super::wire::ProgressForm;
use super::{Bring, RecoverJob, table};
use crate::model::Mount;
use crate::mounts::mountinfo::Parsed;

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
        return heal_from_here(job, mount, report);
    }
    let table = read_table()?;
    if let Some(mount) = job.dead.iter().find_map(|dead| served_by(dead, &table)) {
        // Somebody was faster.
        return heal_from_here(job, mount, report);
    }
    if !job.dead.iter().any(|dead| table.mounts.iter().any(|mount| is_same(mount, dead))) {
        (0..job.dead.len()).for_each(|mount| report(ProgressForm::Gone { mount }));
        return Ok(());
    }

    let mut launcher = Launcher::start(job, deadline)?;
    let healed = match launcher.wait(job, deadline, report)? {
        Brought::Here(mount) => {
            heal_from_here(job, &mount, report)?;
            true
        }
        Brought::There(mount) => {
            let replacement = Replacement::from(&*mount);
            let plan = plan_now(job, &replacement)?;
            // All clones are taken before the first mount is moved: where the mount point's parent is shared, detaching the
            // dead mount here takes the daemon's own copy away from its namespace, too, and nothing can be cloned then.
            let mut clones = fetch(&plan, &mut launcher);
            carry_out(job, &plan, &replacement, &mut clones, report)
        }
    };
    // Otherwise the launcher ends what it launched: a daemon whose mount nobody sees is of no use.
    if healed { launcher.release() } else { Ok(()) }
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

fn heal_from_here(job: &RecoverJob, mount: &Mount, report: &mut dyn FnMut(ProgressForm)) -> Result<(), RecoverError> {
    let replacement = Replacement::from(mount);
    let plan = plan_now(job, &replacement)?;
    carry_out(job, &plan, &replacement, &mut MountedHere::new(mount), report);
    Ok(())
}

fn plan_now(job: &RecoverJob, replacement: &Replacement) -> Result<Plan, RecoverError> {
    let table = read_table()?;
    Ok(plan(&job.dead, &table.mounts, &table.children, replacement, job.features))
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
    let index = |mount: &Mount| job.dead.iter().position(|dead| dead == mount);
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

fn fetch(plan: &Plan, launcher: &mut Launcher) -> Fetched {
    let steps = plan.steps.iter().filter_map(|step| Some((step, step.placement.relative()?)));
    Fetched(steps.map(|(step, relative)| launcher.clone_part(relative, &step.dead.mount_point)).collect())
}

impl CloneSource for Fetched {
    fn clone_part(&mut self, _: &Path, mount_point: &Path) -> Result<(OwnedFd, bool), RecoverError> {
        self.0.pop_front().unwrap_or_else(|| Err(RecoverError::ReplacementGone { path: mount_point.to_owned() }))
    }
}
