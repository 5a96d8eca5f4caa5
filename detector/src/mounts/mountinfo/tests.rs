use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::model::{DeviceNumber, MountFlags, Propagation};

const NAMESPACE: NamespaceId = NamespaceId(4_026_531_841);

fn parsed(text: &[u8]) -> Parsed {
    parse(text, NAMESPACE)
}

fn only_mount(text: &[u8]) -> Mount {
    let Parsed { mounts, problems, .. } = parsed(text);
    assert_eq!(problems, []);
    let [mount] = <[Mount; 1]>::try_from(mounts).unwrap();
    mount
}

#[test]
fn every_field_is_found() {
    let line = b"61 28 0:45 /sub /mnt/a\\040b ro,nosuid,nodev,noexec,relatime,nosymfollow shared:7 master:3 - \
        fuse.sshfs me@host:/srv\\011x rw,user_id=1000,group_id=100,allow_other\n";
    assert_eq!(
        only_mount(line),
        Mount {
            namespace: NAMESPACE,
            id: MountId(61),
            unique_id: None,
            parent: MountId(28),
            device: DeviceNumber { major: 0, minor: 45 },
            root: "/sub".into(),
            root_deleted: false,
            mount_point: "/mnt/a b".into(),
            flags: MountFlags {
                read_only: true,
                no_suid: true,
                no_dev: true,
                no_exec: true,
                no_atime: false,
                rel_atime: true,
                no_dir_atime: false,
                no_sym_follow: true,
            },
            propagation: Propagation { shared: Some(7), master: Some(3), unbindable: false },
            fs_type: "fuse.sshfs".into(),
            source: "me@host:/srv\tx".into(),
            super_options: "rw,user_id=1000,group_id=100,allow_other".into(),
        }
    );
}

#[test]
fn optional_fields_are_none_or_many_and_unknown_ones_are_skipped() {
    let with = |optional: &str| only_mount(format!("2 1 0:5 / /m rw{optional} - fuse s rw\n").as_bytes()).propagation;
    assert_eq!(with(""), Propagation::default());
    assert_eq!(with(" unbindable"), Propagation { unbindable: true, ..Default::default() });
    assert_eq!(
        with(" shared:1 master:2 propagate_from:9 from_the_future"),
        Propagation { shared: Some(1), master: Some(2), unbindable: false }
    );
}

#[test]
fn only_fuse_types_are_mounts() {
    let types = ["fuse", "fuse.a.b", "fuseblk", "fuseblk.ntfs", "fusectl", "fuse-overlayfs", "ext4", "virtiofs"];
    let text: String = types.iter().map(|fs_type| format!("2 1 8:1 / /m rw - {fs_type} s rw\n")).collect();
    let Parsed { mounts, entries, problems, .. } = parsed(text.as_bytes());
    assert_eq!((entries, problems), (types.len(), vec![]));
    let found: Vec<_> = mounts.iter().map(|mount| mount.fs_type.as_str()).collect();
    assert_eq!(found, ["fuse", "fuse.a.b", "fuseblk", "fuseblk.ntfs"]);
}

#[test]
fn deleted_is_a_suffix_and_nothing_else() {
    let root = |root: &str| {
        let mount = only_mount(format!("2 1 0:5 {root} /m rw - fuse s rw\n").as_bytes());
        (mount.root, mount.root_deleted)
    };
    assert_eq!(root("/file//deleted"), ("/file".into(), true));
    assert_eq!(root("/deleted"), ("/deleted".into(), false));
    assert_eq!(root("/a//deleted/b"), ("/a//deleted/b".into(), false));
    // A mount point never carries it.
    let mount = only_mount(b"2 1 0:5 / /m//deleted rw - fuse s rw\n");
    assert_eq!(mount.mount_point, Path::new("/m//deleted"));
}

#[test]
fn an_empty_source_is_no_missing_field() {
    let mount = only_mount(b"2 1 0:5 / /m rw - fuse  rw,user_id=0\n");
    assert_eq!((mount.source, mount.super_options), ("".into(), "rw,user_id=0".into()));
}

#[test]
fn bytes_that_are_not_utf8_survive() {
    let mount = only_mount(b"2 1 0:5 /\xff /\xfe\\012\xfd rw - fuse.\xfc s\xfb rw\n");
    assert_eq!(mount.root.as_os_str().as_bytes(), b"/\xff");
    assert_eq!(mount.mount_point.as_os_str().as_bytes(), b"/\xfe\n\xfd");
    assert_eq!(mount.source.as_bytes(), b"s\xfb");
    assert_eq!(mount.fs_type, "fuse.\u{fffd}");
}

#[test]
fn children_are_found_whatever_their_type_and_order() {
    let text = b"9 5 0:7 / /m/tmp rw - tmpfs t rw\n\
        5 1 0:5 / /m rw - fuse s rw\n\
        6 5 0:6 / /m rw - fuse s rw\n\
        7 1 0:8 / /other rw - tmpfs t rw\n";
    let Parsed { mounts, children, .. } = parsed(text);
    assert_eq!(mounts.iter().map(|mount| mount.id.0).collect::<Vec<_>>(), [5, 6]);
    let found: Vec<_> =
        children.iter().map(|child| (child.id.0, child.parent.0, child.fs_type.as_str(), &child.mount_point)).collect();
    assert_eq!(found, [(9, 5, "tmpfs", &PathBuf::from("/m/tmp")), (6, 5, "fuse", &PathBuf::from("/m"))]);
}

#[test]
fn a_bad_line_is_told_and_hides_no_other() {
    let bad: [(&[u8], LineError); 14] = [
        (b"", LineError::Malformed(Field::MountId)),
        (b"x 1 0:5 / /m rw - fuse s rw", LineError::Malformed(Field::MountId)),
        (b"2", LineError::Missing(Field::Parent)),
        (b"2 y 0:5 / /m rw - fuse s rw", LineError::Malformed(Field::Parent)),
        (b"2 1 0:5 / /m rw fuse s rw", LineError::NoSeparator),
        (b"2 1 0:5 / /m rw - fuse", LineError::Missing(Field::Source)),
        (b"2 1 0:5 / /m rw - fuse s", LineError::Missing(Field::SuperOptions)),
        (b"2 1 0:5 / /m - fuse s rw", LineError::Missing(Field::Options)),
        (b"2 1 0:5 / - fuse s rw", LineError::Missing(Field::MountPoint)),
        (b"2 1 0;5 / /m rw - fuse s rw", LineError::Malformed(Field::Device)),
        (b"2 1 0:5 //deleted /m rw - fuse s rw", LineError::Malformed(Field::Root)),
        (b"2 1 0:5 / m rw - fuse s rw", LineError::Malformed(Field::MountPoint)),
        (b"2 1 0:5 / /m\\9 rw - fuse s rw", LineError::Malformed(Field::MountPoint)),
        (b"2 1 0:5 / /m rw shared:x - fuse s rw", LineError::Malformed(Field::Optional)),
    ];
    let mut text = b"3 1 0:9 / /before rw - fuse s rw\n".to_vec();
    for (line, _) in &bad {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text.extend_from_slice(b"4 1 0:9 / /after rw - fuse s rw\n");
    let Parsed { mounts, problems, entries, .. } = parsed(&text);
    assert_eq!(mounts.iter().map(|mount| mount.id.0).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(entries, bad.len() + 2);
    let expected: Vec<_> =
        bad.iter().enumerate().map(|(index, &(_, error))| LineProblem { line: index + 2, error }).collect();
    assert_eq!(problems, expected);
}

#[test]
fn a_cut_off_last_line_is_not_believed() {
    let text = b"3 1 0:9 / /a rw - fuse s rw\n4 1 0:9 / /b rw - fuse s rw,allow_ot";
    let Parsed { mounts, problems, .. } = parsed(text);
    assert_eq!(mounts.len(), 1);
    assert_eq!(problems, [LineProblem { line: 2, error: LineError::Truncated }]);
}

/// What the kernel writes for a mount: the parser's inverse.
fn render(mount: &Mount) -> Vec<u8> {
    let mut line = format!("{} {} {} ", mount.id.0, mount.parent.0, mount.device).into_bytes();
    escape(&mut line, mount.root.as_os_str());
    if mount.root_deleted {
        line.extend_from_slice(b"//deleted");
    }
    line.push(b' ');
    escape(&mut line, mount.mount_point.as_os_str());
    let mut text = String::from(if mount.flags.read_only { " ro" } else { " rw" });
    for (set, name) in [
        (mount.flags.no_suid, ",nosuid"),
        (mount.flags.no_dev, ",nodev"),
        (mount.flags.no_exec, ",noexec"),
        (mount.flags.no_atime, ",noatime"),
        (mount.flags.no_dir_atime, ",nodiratime"),
        (mount.flags.rel_atime, ",relatime"),
        (mount.flags.no_sym_follow, ",nosymfollow"),
    ] {
        text.push_str(if set { name } else { "" });
    }
    if let Some(group) = mount.propagation.shared {
        write!(text, " shared:{group}").unwrap();
    }
    if let Some(group) = mount.propagation.master {
        write!(text, " master:{group}").unwrap();
    }
    text.push_str(if mount.propagation.unbindable { " unbindable - " } else { " - " });
    line.extend_from_slice(text.as_bytes());
    escape(&mut line, OsStr::new(&mount.fs_type));
    line.push(b' ');
    escape(&mut line, &mount.source);
    line.push(b' ');
    escape(&mut line, &mount.super_options);
    line.push(b'\n');
    line
}

fn escape(line: &mut Vec<u8>, field: &OsStr) {
    for &byte in field.as_bytes() {
        if b" \t\n\\#".contains(&byte) {
            line.extend_from_slice(format!("\\{byte:03o}").as_bytes());
        } else {
            line.push(byte);
        }
    }
}

fn bytes() -> impl Strategy<Value = OsString> {
    // Escaped characters and the separator's are frequent, so that they meet.
    let byte = prop_oneof![any::<u8>(), Just(b' '), Just(b'-'), Just(b'\\'), Just(b'\n')];
    prop::collection::vec(byte, 0..12).prop_map(OsString::from_vec)
}

fn absolute() -> impl Strategy<Value = PathBuf> {
    bytes().prop_map(|tail| {
        let mut path = OsString::from("/");
        path.push(tail);
        path.into()
    })
}

fn flags() -> impl Strategy<Value = MountFlags> {
    any::<[bool; 8]>().prop_map(|[ro, suid, dev, exec, atime, relatime, diratime, symfollow]| MountFlags {
        read_only: ro,
        no_suid: suid,
        no_dev: dev,
        no_exec: exec,
        no_atime: atime,
        rel_atime: relatime,
        no_dir_atime: diratime,
        no_sym_follow: symfollow,
    })
}

prop_compose! {
    fn mount()(
        (id, parent, major, minor) in (any::<u64>(), any::<u64>(), 0_u32..1 << 12, 0_u32..1 << 20),
        (root, root_deleted, mount_point) in (absolute(), any::<bool>(), absolute()),
        flags in flags(),
        (shared, master, unbindable) in (any::<Option<u32>>(), any::<Option<u32>>(), any::<bool>()),
        (subtype, source, super_options) in ("\\PC{0,8}", bytes(), bytes()),
    ) -> Mount {
        Mount {
            namespace: NAMESPACE,
            id: MountId(id),
            unique_id: None,
            parent: MountId(parent),
            device: DeviceNumber { major, minor },
            root,
            root_deleted,
            mount_point,
            flags,
            propagation: Propagation { shared, master, unbindable },
            fs_type: format!("fuse.{subtype}"),
            source,
            super_options,
        }
    }
}

proptest! {
    #[test]
    fn what_the_kernel_writes_is_read_back(mounts in prop::collection::vec(mount(), 0..4)) {
        let text: Vec<u8> = mounts.iter().flat_map(render).collect();
        let parsed = parsed(&text);
        prop_assert_eq!(parsed.problems, []);
        prop_assert_eq!(parsed.mounts, mounts);
    }

    #[test]
    fn any_bytes_are_survived(text in prop::collection::vec(any::<u8>(), 0..512)) {
        let parsed = parsed(&text);
        prop_assert!(parsed.problems.len() + parsed.mounts.len() <= parsed.entries);
    }

    /// Near misses: a valid text with some bytes replaced, so that parsing goes deep before it fails.
    #[test]
    fn damaged_lines_are_survived(
        mounts in prop::collection::vec(mount(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut text: Vec<u8> = mounts.iter().flat_map(render).collect();
        for (at, byte) in damage {
            *at.get_mut(&mut text) = byte;
        }
        let parsed = parsed(&text);
        prop_assert!(parsed.problems.len() + parsed.mounts.len() <= parsed.entries);
    }
}
