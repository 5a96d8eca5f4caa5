use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;
use crate::mounts::testing::{FuseMount, in_private_namespace, mounts_at};

/// A process that lives in the namespace of the thread that starts it, and ends with the test.
struct Inhabitant(Child);

impl Inhabitant {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// `cat` waits until its input is closed. Returns when it runs.
    fn cat(command: &mut Command) -> Self {
        use std::io::{Read, Write};
        let mut this = Self::start(command);
        this.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        this.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        this
    }
}

impl Drop for Inhabitant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn bind(source: &Path, target: &Path, flags: MsFlags) {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | flags, None::<&str>).unwrap();
}

fn thread_namespace() -> NamespaceId {
    NamespaceId(proc::namespace("thread-self", "mnt").unwrap())
}

#[test]
fn the_own_namespaces_mounts_have_unique_ids() {
    in_private_namespace(|directory| {
        let fuse = FuseMount::new(directory, "a b\n\\c");
        let mut scanner = Scanner::default();
        let own = scanner.scan_own().unwrap();
        assert_eq!(own.namespace, thread_namespace());
        assert!(own.problems.is_empty(), "{:?}", own.problems);
        let find = |mounts: &[Mount]| mounts.iter().find(|mount| mount.mount_point == fuse.mount_point).cloned();
        let first = find(&own.mounts).unwrap();
        assert_eq!((first.device, first.fs_type.as_str(), first.is_whole()), (fuse.device, "fuse.test", true));
        assert!(first.flags.no_suid && !first.flags.no_exec && !first.flags.read_only);
        assert_eq!((first.source.to_str(), first.owner_only()), (Some("nobody"), Some((0, 0))));

        // What statx(2) says of the mount, without asking the file system.
        let flags = rustix::fs::AtFlags::STATX_DONT_SYNC | rustix::fs::AtFlags::NO_AUTOMOUNT;
        let unique = rustix::fs::StatxFlags::from_bits_retain(libc::STATX_MNT_ID_UNIQUE);
        let facts = rustix::fs::statx(rustix::fs::CWD, &fuse.mount_point, flags, unique).unwrap();
        assert_eq!(first.unique_id, Some(facts.stx_mnt_id), "needs Linux 6.8");

        // The kernel gives the mount's id and the connection's number to the next one, and a new unique id.
        let FuseMount { descriptor, mount_point, .. } = fuse;
        umount2(&mount_point, MntFlags::empty()).unwrap();
        drop(descriptor);
        let _fuse = FuseMount::over(mount_point.clone(), "fuse.test");
        let second = scanner.scan_own().unwrap().mounts.into_iter().find(|m| m.mount_point == mount_point).unwrap();
        assert!(second.unique_id > first.unique_id);
    });
}

#[test]
fn binds_keep_their_root_and_flags_and_a_mount_on_top_is_a_child() {
    in_private_namespace(|directory| {
        let fuse = FuseMount::new(directory, "m");
        let copy = directory.join("copy");
        std::fs::create_dir(&copy).unwrap();
        bind(&fuse.mount_point, &copy, MsFlags::empty());
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC;
        bind(&copy, &copy, flags);
        mount(Some("none"), &fuse.mount_point, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();

        let own = Scanner::default().scan_own().unwrap();
        let mut here = own.mounts.iter().filter(|mount| mount.device == fuse.device);
        let (first, second) = (here.next().unwrap(), here.next().unwrap());
        assert!(here.next().is_none());
        assert_ne!(first.unique_id, second.unique_id);
        assert!(!first.flags.read_only && second.flags.read_only && second.flags.no_exec && !second.flags.no_suid);
        let children: Vec<_> = own.children.iter().filter(|child| child.parent == first.id).collect();
        assert_eq!(children.len(), 1);
        assert_eq!((children[0].fs_type.as_str(), &children[0].mount_point), ("tmpfs", &fuse.mount_point));
    });
}

#[test]
fn another_namespace_is_seen_through_a_process_in_it() {
    in_private_namespace(|directory| {
        let fuse = FuseMount::new(directory, "m");
        let namespace = thread_namespace();
        let inhabitants = [Inhabitant::cat(&mut Command::new("cat")), Inhabitant::cat(&mut Command::new("cat"))];
        // From a thread of the first namespace.
        let snapshot = std::thread::scope(|scope| scope.spawn(scan_from_the_process).join().unwrap());
        assert_ne!(snapshot.own, Some(namespace));
        assert_eq!(snapshot.mounts.iter().filter(|mount| mount.device == fuse.device).count(), 1, "seen once");
        let mount = snapshot.mounts.iter().find(|mount| mount.device == fuse.device).unwrap();
        assert_eq!((mount.namespace, &mount.mount_point), (namespace, &fuse.mount_point));
        let pid = snapshot.namespaces[&namespace];
        assert!(inhabitants.iter().any(|inhabitant| inhabitant.0.id() == pid));
    });
}

#[test]
fn the_own_namespace_comes_first_and_once() {
    in_private_namespace(|directory| {
        let fuse = FuseMount::new(directory, "m");
        let _inhabitant = Inhabitant::cat(&mut Command::new("cat"));
        let snapshot = Scanner::default().scan();
        assert_eq!(snapshot.own, Some(thread_namespace()));
        assert_eq!(snapshot.mounts.iter().filter(|mount| mount.device == fuse.device).count(), 1);
        assert_eq!(snapshot.mounts.first().map(|mount| mount.namespace), snapshot.own);
        assert!(snapshot.namespaces.len() > 1, "the process's namespace is another one");
    });
}

/// [`in_private_namespace`] gives its thread a namespace of its own; threads that it starts inherit it. This one goes
/// back to the process's.
fn scan_from_the_process() -> Snapshot {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
    let own = std::fs::File::open("/proc/self/ns/mnt").unwrap();
    nix::sched::setns(own, nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    Scanner::default().scan()
}

#[test]
fn a_process_in_a_chroot_is_asked_only_when_there_is_no_other() {
    in_private_namespace(|directory| {
        let fuse = FuseMount::new(directory, "outside");
        let root = directory.join("root");
        std::fs::create_dir(&root).unwrap();
        for name in ["usr", "dev"] {
            std::fs::create_dir(root.join(name)).unwrap();
            bind(&Path::new("/").join(name), &root.join(name), MsFlags::empty());
        }
        for name in ["bin", "lib", "lib64"] {
            symlink(Path::new("usr").join(name), root.join(name)).unwrap();
        }
        // A mount of its own, for mountinfo shows a process only the mounts below its root.
        bind(&root, &root, MsFlags::MS_REC);
        let namespace = thread_namespace();
        let scan = || std::thread::scope(|scope| scope.spawn(scan_from_the_process).join().unwrap());
        let is_partial =
            |problem: &Problem| matches!(problem, Problem::PartialView { namespace: told, .. } if *told == namespace);

        let confined = Inhabitant::cat(Command::new("chroot").arg(&root).arg("/bin/cat"));
        let snapshot = scan();
        assert!(snapshot.problems.iter().any(is_partial), "{:?}", snapshot.problems);
        assert_eq!(snapshot.namespaces[&namespace], confined.0.id());
        assert!(!snapshot.mounts.iter().any(|mount| mount.device == fuse.device));

        let free = Inhabitant::cat(&mut Command::new("cat"));
        let snapshot = scan();
        assert!(!snapshot.problems.iter().any(is_partial));
        assert_eq!(snapshot.namespaces[&namespace], free.0.id());
        assert!(snapshot.mounts.iter().any(|mount| mount.device == fuse.device));
    });
}

#[test]
fn stacked_mounts_are_all_there() {
    in_private_namespace(|directory| {
        let first = FuseMount::new(directory, "m");
        let second = FuseMount::over(first.mount_point.clone(), "fuse");
        let devices: Vec<_> = mounts_at(&first.mount_point).iter().map(|mount| mount.device).collect();
        assert_eq!(devices, [first.device, second.device]);
        let own = Scanner::default().scan_own().unwrap();
        let lower = own.mounts.iter().find(|mount| mount.device == first.device).unwrap();
        assert!(own.children.iter().any(|child| child.parent == lower.id && child.fs_type == "fuse"));
    });
}

/// A process can end between the look at its namespace and the look at its mount table.
#[test]
fn a_namespace_of_which_only_a_zombie_is_left_is_no_problem() {
    let mut child = Command::new("true").spawn().unwrap();
    let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), ended).unwrap();
    let looked = look_into(thread_namespace(), &[child.id()]);
    child.wait().unwrap();
    assert!(matches!(looked, Ok(None)), "{looked:?}");
}
