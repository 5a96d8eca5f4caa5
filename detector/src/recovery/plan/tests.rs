use proptest::prelude::*;

use super::*;
use crate::model::{MountFlags, NamespaceId, Propagation};

const NEW: Features = Features { beneath: true, unique_id: true };
const OLD: Features = Features { beneath: false, unique_id: false };

fn mount(id: u64, parent: u64, minor: u32, mount_point: &str) -> Mount {
    Mount {
        namespace: NamespaceId(1),
        id: MountId(id),
        unique_id: None,
        parent: MountId(parent),
        device: DeviceNumber { major: 0, minor },
        root: "/".into(),
        root_deleted: false,
        mount_point: mount_point.into(),
        flags: MountFlags::default(),
        propagation: Propagation::default(),
        fs_type: "fuse.test".into(),
        source: "src".into(),
        super_options: "rw,allow_other".into(),
    }
}

fn child(id: u64, parent: u64, mount_point: &str) -> ChildMount {
    ChildMount {
        namespace: NamespaceId(1),
        id: MountId(id),
        parent: MountId(parent),
        mount_point: mount_point.into(),
        fs_type: "tmpfs".into(),
    }
}

fn replacement() -> Replacement {
    Replacement::from(&mount(99, 1, 90, "/new"))
}

fn only_placement(plan: Plan) -> Placement {
    assert!(plan.refused.is_empty(), "{plan:?}");
    assert_eq!(plan.steps.len(), 1, "{plan:?}");
    plan.steps.into_iter().next().unwrap().placement
}

fn only_refusal(plan: Plan) -> Refusal {
    assert!(plan.steps.is_empty(), "{plan:?}");
    plan.refused.into_iter().next().unwrap().why
}

#[test]
fn the_kernel_decides_between_beneath_and_guard() {
    let dead = [mount(10, 1, 50, "/m")];
    let relative = PathBuf::new();
    assert_eq!(
        only_placement(plan(&dead, &dead, &[], &replacement(), NEW)),
        Placement::Beneath { relative: relative.clone() }
    );
    assert_eq!(only_placement(plan(&dead, &dead, &[], &replacement(), OLD)), Placement::BecomeGuard { relative });
}

#[test]
fn a_guard_is_used_again() {
    let guard = mount(10, 1, 49, "/m");
    let dead = [mount(11, 10, 50, "/m")];
    let all = [guard.clone(), dead[0].clone()];
    let found = only_placement(plan(&dead, &all, &[], &replacement(), OLD));
    assert_eq!(found, Placement::OnGuard { relative: PathBuf::new(), guard });
}

#[test]
fn another_file_system_below_is_no_guard() {
    let mut below = mount(10, 1, 49, "/m");
    below.source = "something else".into();
    let dead = [mount(11, 10, 50, "/m")];
    let found = only_placement(plan(&dead, &[below, dead[0].clone()], &[], &replacement(), OLD));
    assert_eq!(found, Placement::BecomeGuard { relative: PathBuf::new() });
}

#[test]
fn roots_are_taken_relative_to_the_replacements() {
    let mut dead = mount(10, 1, 50, "/m");
    dead.root = "/a/b/c".into();
    let mut part = replacement();
    part.root = "/a".into();
    let dead = [dead];
    assert_eq!(only_placement(plan(&dead, &dead, &[], &part, NEW)), Placement::Beneath { relative: "b/c".into() });
    part.root = "/x".into();
    assert!(matches!(only_refusal(plan(&dead, &dead, &[], &part, NEW)), Refusal::OutsideReplacement { .. }));
}

#[test]
fn mounts_of_the_dead_connection_on_top_of_each_other_are_one_step() {
    let dead = [mount(12, 11, 50, "/m"), mount(10, 1, 50, "/m"), mount(11, 10, 50, "/m")];
    let plan = plan(&dead, &dead, &[], &replacement(), NEW);
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.steps[0].dead.id, MountId(10));
    assert_eq!(plan.steps[0].above.iter().map(|mount| mount.id.0).collect::<Vec<_>>(), [12, 11]);
}

#[test]
fn what_hangs_below_or_over_is_never_hidden() {
    let dead = [mount(10, 1, 50, "/m")];
    let below = [child(20, 10, "/m/inner")];
    assert!(matches!(
        only_refusal(plan(&dead, &dead, &below, &replacement(), NEW)),
        Refusal::MountedBelow { fs_type, .. } if fs_type == "tmpfs"
    ));
    let over = [child(20, 10, "/m")];
    assert!(matches!(only_refusal(plan(&dead, &dead, &over, &replacement(), NEW)), Refusal::Covered { .. }));
}

#[test]
fn the_drivers_own_mount_on_top_is_left_alone() {
    let dead = [mount(10, 1, 50, "/m")];
    let live = mount(11, 10, 90, "/m");
    let children = [child(11, 10, "/m")];
    let found = only_placement(plan(&dead, &[dead[0].clone(), live], &children, &replacement(), NEW));
    assert_eq!(found, Placement::Served { device: DeviceNumber { major: 0, minor: 90 } });
}

#[test]
fn an_interrupted_attempt_is_finished_not_repeated() {
    let live = mount(11, 1, 90, "/m");
    let dead = [mount(10, 11, 50, "/m")];
    for features in [NEW, OLD] {
        let found = only_placement(plan(&dead, &[live.clone(), dead[0].clone()], &[], &replacement(), features));
        assert_eq!(found, Placement::Uncover);
    }
}

/// The device number of a dead mount that is gone can be the replacement's by now.
#[test]
fn what_is_no_longer_mounted_is_gone() {
    let dead = [mount(10, 1, 90, "/m"), mount(11, 1, 90, "/n")];
    let plan = plan(&dead, &[mount(10, 1, 90, "/new")], &[], &replacement(), NEW);
    assert_eq!((plan.gone.as_slice(), plan.steps.len(), plan.refused.len()), (dead.as_slice(), 0, 0));
}

#[test]
fn another_source_is_refused() {
    let dead = [mount(10, 1, 50, "/m")];
    let mut other = replacement();
    other.source = "elsewhere".into();
    let refusal = only_refusal(plan(&dead, &dead, &[], &other, NEW));
    assert!(refusal.to_string().starts_with("another source"), "{refusal}");
    assert!(matches!(
        only_refusal(plan(&dead, &dead, &[], &Replacement::from(&dead[0]), NEW)),
        Refusal::SameConnection(_)
    ));
}

/// Any forest of mounts: each hangs on an earlier one, at one of few places.
fn tables() -> impl Strategy<Value = Vec<Mount>> {
    prop::collection::vec((any::<prop::sample::Index>(), 50_u32..54, 0_usize..3, prop::bool::ANY), 1..12).prop_map(
        |rows| {
            let mut mounts: Vec<Mount> = Vec::new();
            for (index, (parent, minor, place, other)) in rows.into_iter().enumerate() {
                let id = 10 + index as u64;
                let parent = if index == 0 { 1 } else { parent.index(index) as u64 + 9 };
                let mut mount = mount(id, parent, minor, ["/m", "/m/deep", "/n"][place]);
                if other {
                    mount.source = "other".into();
                }
                mounts.push(mount);
            }
            mounts
        },
    )
}

proptest! {
    /// Every dead mount is planned for or refused, exactly once; and none is planned for whose loss would hide another.
    #[test]
    fn every_dead_mount_is_accounted_for(all in tables(), beneath: bool) {
        let dead: Vec<Mount> = all.iter().filter(|mount| mount.device.minor == 50).cloned().collect();
        let children: Vec<ChildMount> = all
            .iter()
            .filter(|mount| all.iter().any(|parent| parent.id == mount.parent))
            .map(|mount| ChildMount { fs_type: mount.fs_type.clone(), ..child(mount.id.0, mount.parent.0, mount.mount_point.to_str().unwrap()) })
            .collect();
        let features = Features { beneath, unique_id: true };
        let plan = plan(&dead, &all, &children, &replacement(), features);
        let mut seen: Vec<MountId> = plan.refused.iter().map(|refused| refused.mount.id).collect();
        for step in &plan.steps {
            let layers: Vec<MountId> = step.above.iter().map(|mount| mount.id).chain([step.dead.id]).collect();
            if !matches!(step.placement, Placement::Served { .. }) {
                for child in &children {
                    prop_assert!(!layers.contains(&child.parent) || layers.contains(&child.id));
                }
            }
            seen.extend(layers);
        }
        // Two mounts on one parent at one place: the kernel never makes that, and then only one of them is seen.
        seen.sort();
        let mut unique = seen.clone();
        unique.dedup();
        prop_assert_eq!(&seen, &unique);
        let forked = |mount: &Mount| all.iter().any(|other| other.id != mount.id && other.parent == mount.parent && other.mount_point == mount.mount_point);
        let expected: Vec<MountId> = dead.iter().map(|mount| mount.id).collect();
        if !all.iter().any(forked) {
            prop_assert_eq!(seen, expected);
        }
    }
}
