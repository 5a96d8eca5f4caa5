//! What to do with each dead mount of one mount namespace. Pure: mount tables in, steps out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::Features;
use crate::model::{DeviceNumber, Mount, MountId};
use crate::mounts::mountinfo::ChildMount;
use crate::text::printable;

/// The living file system that takes a dead one's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// Its device.
    pub device: DeviceNumber,
    /// `fuse`, `fuse.<subtype>`, …
    pub fs_type: String,
    /// What its daemon calls its source.
    pub source: OsString,
    /// The part of the file system that is mounted where it is taken from.
    pub root: PathBuf,
    /// The only user and group whose requests it serves; `None`: it serves everybody.
    pub owner: Option<(u32, u32)>,
}

impl From<&Mount> for Replacement {
    fn from(mount: &Mount) -> Self {
        Self {
            device: mount.device,
            fs_type: mount.fs_type.clone(),
            source: mount.source.clone(),
            root: mount.root.clone(),
            owner: mount.owner_only(),
        }
    }
}

/// What is done, in this order, and what is not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// One for each place where dead mounts hang.
    pub steps: Vec<Step>,
    /// The dead mounts that are left as they are.
    pub refused: Vec<Refused>,
    /// The dead mounts that are no longer there.
    pub gone: Vec<Mount>,
}

/// A dead mount that is left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The mount.
    pub mount: Mount,
    /// Why.
    pub why: Refusal,
}

/// The work at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The lowest dead mount there: what the replacement is made to look like.
    pub dead: Mount,
    /// Further mounts of the same dead connection stacked on it, the topmost first. They are detached first; what shows
    /// then is dead, too.
    pub above: Vec<Mount>,
    /// The way to replace it.
    pub placement: Placement,
}

/// How the replacement gets to its place without the bare directory showing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// A clone goes beneath the dead mount, which is then detached. One layer is left.
    Beneath {
        /// What part of the replacement to clone, relative to the replacement's own root.
        relative: PathBuf,
    },
    /// The kernel can't put a mount beneath another: the dead mount is made private and stays below as a guard, so that
    /// even at the next death no bare directory shows. Two layers are left.
    BecomeGuard {
        /// As in `Beneath`.
        relative: PathBuf,
    },
    /// The dead mount hangs on the guard of an earlier recovery: it is detached, which shows the guard (ENOTCONN), and the
    /// clone is moved onto the guard. Two layers are left, again.
    OnGuard {
        /// As in `Beneath`.
        relative: PathBuf,
        /// The guard.
        guard: Mount,
    },
    /// The replacement lies beneath the dead mount already: an earlier attempt was interrupted. Only detach.
    Uncover,
    /// A living mount of the same file system hangs on top: somebody was faster. Only verify.
    Served {
        /// Its device.
        device: DeviceNumber,
    },
}

/// Why a dead mount is left as it is. Trying again helps only once something changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The replacement is another file system.
    #[error(
        "another source: {} ({dead_type}) was mounted, the replacement is {} ({replacement_type})",
        printable(dead),
        printable(replacement)
    )]
    AnotherSource {
        /// The dead one's type.
        dead_type: String,
        /// The dead one's source.
        dead: OsString,
        /// The replacement's type.
        replacement_type: String,
        /// The replacement's source.
        replacement: OsString,
    },
    /// The replacement is the dead connection itself.
    #[error("the replacement is the dead connection {0} itself")]
    SameConnection(DeviceNumber),
    /// Another file system is mounted below it; it would be taken away with the dead one.
    #[error("{fs_type} is mounted below it at {}: it would be hidden", printable(mount_point.as_os_str()))]
    MountedBelow {
        /// Where.
        mount_point: PathBuf,
        /// What.
        fs_type: String,
    },
    /// Another file system is mounted over it.
    #[error("{fs_type} is mounted over it")]
    Covered {
        /// What.
        fs_type: String,
    },
    /// The replacement is a part of the file system that doesn't contain the mount's root.
    #[error("it shows {} of the file system, the replacement only {}", printable(root.as_os_str()), printable(replacement.as_os_str()))]
    OutsideReplacement {
        /// The dead mount's root.
        root: PathBuf,
        /// The replacement's.
        replacement: PathBuf,
    },
}

/// Plans the recovery of `dead`, all in one mount namespace whose FUSE mounts are `all` and whose mounts on FUSE mounts are
/// `children`.
pub fn plan(
    dead: &[Mount],
    all: &[Mount],
    children: &[ChildMount],
    replacement: &Replacement,
    features: Features,
) -> Plan {
    let is_there = |dead: &Mount| all.iter().any(|mount| is_same(mount, dead));
    let (dead, gone): (Vec<Mount>, Vec<Mount>) = dead.iter().cloned().partition(is_there);
    let table = Table { dead: &dead, all, children };
    let mut plan = Plan { gone, ..Plan::default() };
    for bottom in dead.iter().filter(|mount| !table.stands_on_dead(mount)) {
        let (mount, above) = table.dead_stack(bottom);
        match table.placement(bottom, &above, replacement, features) {
            Ok(placement) => plan.steps.push(Step { dead: mount, above, placement }),
            Err(why) => {
                let refused = |mount| Refused { mount, why: why.clone() };
                plan.refused.extend(above.into_iter().chain([mount]).map(refused));
            }
        }
    }
    // What needs no clone comes first: it may be what makes the replacement reachable. Then parents before what is below.
    plan.steps.sort_by_key(|step| (step.placement.needs_clone(), step.dead.mount_point.components().count()));
    plan
}

impl Placement {
    /// The part of the replacement that has to be cloned for it.
    pub fn relative(&self) -> Option<&Path> {
        match self {
            Self::Beneath { relative } | Self::BecomeGuard { relative } | Self::OnGuard { relative, .. } => {
                Some(relative)
            }
            Self::Uncover | Self::Served { .. } => None,
        }
    }

    fn needs_clone(&self) -> bool {
        self.relative().is_some()
    }
}

struct Table<'a> {
    dead: &'a [Mount],
    all: &'a [Mount],
    children: &'a [ChildMount],
}

impl<'a> Table<'a> {
    /// The dead mount directly below this one at the same place.
    fn stands_on_dead(&self, mount: &Mount) -> bool {
        self.dead.iter().any(|lower| lower.id == mount.parent && lower.mount_point == mount.mount_point)
    }

    /// The dead mount and those of the same connection on top of it, the topmost first.
    fn dead_stack(&self, bottom: &Mount) -> (Mount, Vec<Mount>) {
        let mut above = Vec::new();
        let mut top = bottom;
        // A table read while it changed could show a mount twice; each dead mount is taken once at most.
        while above.len() < self.dead.len() {
            let Some(next) = self.dead.iter().find(|mount| stacked_on(mount, top)) else { break };
            above.insert(0, next.clone());
            top = next;
        }
        (bottom.clone(), above)
    }

    fn placement(
        &self,
        bottom: &Mount,
        above: &[Mount],
        replacement: &Replacement,
        features: Features,
    ) -> Result<Placement, Refusal> {
        if replacement.device == bottom.device {
            return Err(Refusal::SameConnection(bottom.device));
        }
        if !same_file_system(bottom, &replacement.fs_type, &replacement.source) {
            return Err(Refusal::AnotherSource {
                dead_type: bottom.fs_type.clone(),
                dead: bottom.source.clone(),
                replacement_type: replacement.fs_type.clone(),
                replacement: replacement.source.clone(),
            });
        }
        let top = above.first().unwrap_or(bottom);
        if let Some(over) = self.all.iter().find(|mount| stacked_on(mount, top) && is_like(mount, bottom)) {
            return Ok(Placement::Served { device: over.device });
        }
        self.nothing_would_be_hidden(above.iter().chain([bottom]))?;

        let lower = self.all.iter().find(|lower| stacked_on(bottom, lower));
        if lower.is_some_and(|lower| lower.device == replacement.device) {
            return Ok(Placement::Uncover);
        }
        let outside =
            || Refusal::OutsideReplacement { root: bottom.root.clone(), replacement: replacement.root.clone() };
        let relative = bottom.root.strip_prefix(&replacement.root).map_err(|_| outside())?.to_owned();
        Ok(match lower {
            _ if features.beneath => Placement::Beneath { relative },
            Some(guard) if is_like(guard, bottom) => Placement::OnGuard { relative, guard: guard.clone() },
            _ => Placement::BecomeGuard { relative },
        })
    }

    /// Refuses if any other mount hangs on one of these.
    fn nothing_would_be_hidden<'m>(&self, layers: impl Iterator<Item = &'m Mount> + Clone) -> Result<(), Refusal> {
        let ids: Vec<MountId> = layers.clone().map(|layer| layer.id).collect();
        for layer in layers {
            let hangs = |child: &&ChildMount| child.parent == layer.id && !ids.contains(&child.id);
            if let Some(child) = self.children.iter().find(hangs) {
                let ChildMount { mount_point, fs_type, .. } = child.clone();
                return Err(if mount_point == layer.mount_point {
                    Refusal::Covered { fs_type }
                } else {
                    Refusal::MountedBelow { mount_point, fs_type }
                });
            }
        }
        Ok(())
    }
}

/// The same mount, as far as a mount table tells: the kernel reuses all of this once the mount is gone.
pub(super) fn is_same(mount: &Mount, other: &Mount) -> bool {
    (mount.id, mount.device, &mount.mount_point) == (other.id, other.device, &other.mount_point)
}

fn stacked_on(upper: &Mount, lower: &Mount) -> bool {
    upper.parent == lower.id && upper.id != lower.id && upper.mount_point == lower.mount_point
}

fn same_file_system(mount: &Mount, fs_type: &str, source: &OsString) -> bool {
    mount.fs_type == fs_type && mount.source == *source
}

/// Another connection, dead or alive, of the same file system, that is mounted in the same way.
fn is_like(mount: &Mount, dead: &Mount) -> bool {
    mount.device != dead.device && same_file_system(mount, &dead.fs_type, &dead.source)
}

#[cfg(test)]
mod tests;
