//! The forms in which jobs and results cross from the agent to a worker process and back, as JSON.
//!
//! Paths and other bytes are text with reversible escapes ([`text::escape_always`]), so that no byte is lost. Mounts come
//! back as their index in the job.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Bring, CgroupMembership, Features, LaunchSpec, MountTarget, RecoverJob};
use crate::model::{DeviceNumber, Mount, MountFlags, MountId, NamespaceId, Propagation};
use crate::mounts::{Limit, Privileges};
use crate::text;

/// Any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bytes(pub OsString);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text::escape_always(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text::unescape(&text).map(Self).ok_or_else(|| D::Error::custom("a malformed escape"))
    }
}

impl<T: AsRef<OsStr>> From<&T> for Bytes {
    fn from(bytes: &T) -> Self {
        Self(bytes.as_ref().to_owned())
    }
}

impl From<Bytes> for PathBuf {
    fn from(Bytes(bytes): Bytes) -> Self {
        bytes.into()
    }
}

fn all(bytes: &[OsString]) -> Vec<Bytes> {
    bytes.iter().map(Bytes::from).collect()
}

fn all_back(bytes: Vec<Bytes>) -> Vec<OsString> {
    bytes.into_iter().map(|Bytes(bytes)| bytes).collect()
}

/// A [`MountTarget`].
#[derive(Serialize, Deserialize)]
pub(crate) struct TargetForm {
    mount_point: Bytes,
    device: u32,
    id: u64,
    unique_id: Option<u64>,
}

impl From<&MountTarget> for TargetForm {
    fn from(target: &MountTarget) -> Self {
        let MountTarget { mount_point, device, id, unique_id } = target;
        Self { mount_point: mount_point.into(), device: device.to_kernel(), id: id.0, unique_id: *unique_id }
    }
}

impl From<TargetForm> for MountTarget {
    fn from(form: TargetForm) -> Self {
        let TargetForm { mount_point, device, id, unique_id } = form;
        Self { mount_point: mount_point.into(), device: DeviceNumber::from_kernel(device), id: MountId(id), unique_id }
    }
}

/// A [`Mount`].
#[derive(Serialize, Deserialize)]
pub(crate) struct MountForm {
    namespace: u64,
    #[serde(flatten)]
    target: TargetForm,
    parent: u64,
    root: Bytes,
    root_deleted: bool,
    flags: [bool; 8],
    shared: Option<u32>,
    master: Option<u32>,
    unbindable: bool,
    fs_type: String,
    source: Bytes,
    super_options: Bytes,
}

impl From<&Mount> for MountForm {
    fn from(mount: &Mount) -> Self {
        let target = TargetForm::from(&MountTarget::from(mount));
        let Mount { namespace, parent, root, root_deleted, flags, propagation, fs_type, source, super_options, .. } =
            mount;
        let MountFlags { read_only, no_suid, no_dev, no_exec, no_atime, rel_atime, no_dir_atime, no_sym_follow } =
            *flags;
        let Propagation { shared, master, unbindable } = *propagation;
        Self {
            namespace: namespace.0,
            target,
            parent: parent.0,
            root: root.into(),
            root_deleted: *root_deleted,
            flags: [read_only, no_suid, no_dev, no_exec, no_atime, rel_atime, no_dir_atime, no_sym_follow],
            shared,
            master,
            unbindable,
            fs_type: fs_type.clone(),
            source: source.into(),
            super_options: super_options.into(),
        }
    }
}

impl From<MountForm> for Mount {
    fn from(form: MountForm) -> Self {
        let MountTarget { mount_point, device, id, unique_id } = form.target.into();
        let [read_only, no_suid, no_dev, no_exec, no_atime, rel_atime, no_dir_atime, no_sym_follow] = form.flags;
        Self {
            namespace: NamespaceId(form.namespace),
            id,
            unique_id,
            parent: MountId(form.parent),
            device,
            root: form.root.into(),
            root_deleted: form.root_deleted,
            mount_point,
            flags: MountFlags { read_only, no_suid, no_dev, no_exec, no_atime, rel_atime, no_dir_atime, no_sym_follow },
            propagation: Propagation { shared: form.shared, master: form.master, unbindable: form.unbindable },
            fs_type: form.fs_type,
            source: form.source.0,
            super_options: form.super_options.0,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct CgroupForm {
    controllers: String,
    path: Bytes,
}

fn cgroups(memberships: &[CgroupMembership]) -> Vec<CgroupForm> {
    let form = |CgroupMembership { controllers, path }: &CgroupMembership| CgroupForm {
        controllers: controllers.clone(),
        path: path.into(),
    };
    memberships.iter().map(form).collect()
}

fn cgroups_back(forms: Vec<CgroupForm>) -> Vec<CgroupMembership> {
    forms.into_iter().map(|form| CgroupMembership { controllers: form.controllers, path: form.path.into() }).collect()
}

#[derive(Serialize, Deserialize)]
struct LaunchForm {
    exe: Bytes,
    argv: Vec<Bytes>,
    env: Vec<Bytes>,
    cwd: Bytes,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    cgroups: Vec<CgroupForm>,
    oom_score_adj: Option<i32>,
    umask: Option<u32>,
    limits: Vec<Limit>,
    privileges: Option<Privileges>,
}

#[derive(Serialize, Deserialize)]
enum BringForm {
    Existing(Box<MountForm>),
    Respawn(LaunchForm),
    Command { argv: Vec<Bytes>, timeout: Duration, cgroups: Vec<CgroupForm> },
}

impl From<&Bring> for BringForm {
    fn from(bring: &Bring) -> Self {
        match bring {
            Bring::Existing(mount) => Self::Existing(Box::new(mount.into())),
            Bring::Respawn(spec) => {
                let LaunchSpec {
                    exe,
                    argv,
                    env,
                    cwd,
                    uid,
                    gid,
                    groups,
                    cgroups: member_of,
                    oom_score_adj,
                    umask,
                    limits,
                    privileges,
                } = spec;
                Self::Respawn(LaunchForm {
                    exe: exe.into(),
                    argv: all(argv),
                    env: all(env),
                    cwd: cwd.into(),
                    uid: *uid,
                    gid: *gid,
                    groups: groups.clone(),
                    cgroups: cgroups(member_of),
                    oom_score_adj: *oom_score_adj,
                    umask: *umask,
                    limits: limits.clone(),
                    privileges: *privileges,
                })
            }
            Bring::Command { argv, timeout, cgroups: member_of } => {
                Self::Command { argv: all(argv), timeout: *timeout, cgroups: cgroups(member_of) }
            }
        }
    }
}

impl From<BringForm> for Bring {
    fn from(form: BringForm) -> Self {
        match form {
            BringForm::Existing(mount) => Self::Existing((*mount).into()),
            BringForm::Respawn(form) => {
                let LaunchForm {
                    exe,
                    argv,
                    env,
                    cwd,
                    uid,
                    gid,
                    groups,
                    cgroups,
                    oom_score_adj,
                    umask,
                    limits,
                    privileges,
                } = form;
                Self::Respawn(LaunchSpec {
                    exe: exe.into(),
                    argv: all_back(argv),
                    env: all_back(env),
                    cwd: cwd.into(),
                    uid,
                    gid,
                    groups,
                    cgroups: cgroups_back(cgroups),
                    oom_score_adj,
                    umask,
                    limits,
                    privileges,
                })
            }
            BringForm::Command { argv, timeout, cgroups } => {
                Self::Command { argv: all_back(argv), timeout, cgroups: cgroups_back(cgroups) }
            }
        }
    }
}

/// A [`RecoverJob`].
#[derive(Serialize, Deserialize)]
pub(crate) struct JobForm {
    bring: BringForm,
    dead: Vec<MountForm>,
    launched: Vec<u32>,
    features: Features,
    deadline: Duration,
}

impl From<&RecoverJob> for JobForm {
    fn from(job: &RecoverJob) -> Self {
        let RecoverJob { bring, dead, launched, features, deadline } = job;
        Self {
            bring: bring.into(),
            dead: dead.iter().map(MountForm::from).collect(),
            launched: launched.clone(),
            features: *features,
            deadline: *deadline,
        }
    }
}

impl From<JobForm> for RecoverJob {
    fn from(form: JobForm) -> Self {
        let JobForm { bring, dead, launched, features, deadline } = form;
        Self { bring: bring.into(), dead: dead.into_iter().map(Mount::from).collect(), launched, features, deadline }
    }
}

/// [`super::Progress`] as the worker tells it: mounts by their index in the job's `dead`, moments in nanoseconds since boot,
/// devices as the kernel encodes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProgressForm {
    Isolated { namespace: u64 },
    Noted { what: String },
    Launched { pid: u32 },
    Ready { dead: u32, device: u32, at: u64, pid: Option<u32> },
    Healed { mount: usize, device: u32, at: u64 },
    Gone { mount: usize },
    Failed { mount: Option<usize>, error: String, refused: bool },
    Finished,
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = OsString> {
        prop::collection::vec(1_u8.., 0..12).prop_map(OsString::from_vec)
    }

    fn mounts() -> impl Strategy<Value = Mount> {
        (
            any::<(u64, u64, Option<u64>, u32, bool, [bool; 8])>(),
            any::<(Option<u32>, Option<u32>, bool)>(),
            [bytes(), bytes(), bytes(), bytes()],
        )
            .prop_map(|((namespace, id, unique_id, device, root_deleted, flags), propagation, texts)| {
                let [root, mount_point, source, super_options] = texts;
                let [read_only, no_suid, no_dev, no_exec, no_atime, rel_atime, no_dir_atime, no_sym_follow] = flags;
                let (shared, master, unbindable) = propagation;
                Mount {
                    namespace: NamespaceId(namespace),
                    id: MountId(id),
                    unique_id,
                    parent: MountId(id / 2),
                    device: DeviceNumber::from_kernel(device),
                    root: root.into(),
                    root_deleted,
                    mount_point: mount_point.into(),
                    flags: MountFlags {
                        read_only,
                        no_suid,
                        no_dev,
                        no_exec,
                        no_atime,
                        rel_atime,
                        no_dir_atime,
                        no_sym_follow,
                    },
                    propagation: Propagation { shared, master, unbindable },
                    fs_type: "fuse.x".into(),
                    source,
                    super_options,
                }
            })
    }

    fn brings() -> impl Strategy<Value = Bring> {
        let cgroups =
            bytes().prop_map(|path| vec![CgroupMembership { controllers: "cpu,cpuacct".into(), path: path.into() }]);
        let respawn = (prop::collection::vec(bytes(), 0..4), cgroups, any::<(u32, u32, Vec<u32>, Option<i32>)>())
            .prop_map(|(texts, cgroups, (uid, gid, groups, oom_score_adj))| {
                Bring::Respawn(LaunchSpec {
                    exe: "/bin/x".into(),
                    argv: texts.clone(),
                    env: texts,
                    cwd: "/".into(),
                    uid,
                    gid,
                    groups,
                    cgroups,
                    oom_score_adj,
                    umask: oom_score_adj.map(i32::cast_unsigned),
                    limits: vec![Limit { resource: uid, soft: Some(u64::from(gid)), hard: None }],
                    privileges: oom_score_adj.map(|nice| Privileges {
                        ambient: u64::from(uid),
                        nice,
                        ..Privileges::default()
                    }),
                })
            });
        let command = (prop::collection::vec(bytes(), 0..4), any::<Duration>())
            .prop_map(|(argv, timeout)| Bring::Command { argv, timeout, cgroups: vec![] });
        prop_oneof![mounts().prop_map(Bring::Existing), respawn, command]
    }

    proptest! {
        #[test]
        fn a_job_comes_through_unchanged(bring in brings(), dead in prop::collection::vec(mounts(), 0..3), beneath: bool, deadline: Duration) {
            let features = Features { beneath, unique_id: !beneath };
            let job = RecoverJob { bring, dead, launched: vec![7], features, deadline };
            let text = serde_json::to_vec(&JobForm::from(&job)).unwrap();
            let back: JobForm = serde_json::from_slice(&text).unwrap();
            prop_assert_eq!(RecoverJob::from(back), job);
        }
    }

    #[test]
    fn a_malformed_escape_is_an_error() {
        assert!(serde_json::from_str::<Bytes>(r#""\\xzz""#).is_err());
    }
}
