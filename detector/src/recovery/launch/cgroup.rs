use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::recovery::CgroupMembership;

/// The `cgroup.procs` files to write a process id to so that a process has these memberships, according to a mountinfo.
/// Memberships of hierarchies that are not mounted, or of cgroups outside the visible part, are left out.
pub(super) fn procs_files(memberships: &[CgroupMembership], mountinfo: &[u8]) -> Vec<PathBuf> {
    let hierarchies: Vec<Hierarchy<'_>> = mountinfo.split(|&byte| byte == b'\n').filter_map(Hierarchy::parse).collect();
    let directory = |membership| hierarchies.iter().find_map(|hierarchy| hierarchy.directory(membership));
    memberships.iter().filter_map(directory).map(|directory| directory.join("cgroup.procs")).collect()
}

/// Moves the calling process into the cgroup. One that is gone is passed over: there is nothing to return to.
pub(super) fn enter(procs: &Path) -> io::Result<()> {
    // 0 is the writer itself (cgroups(7)).
    match std::fs::write(procs, "0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// A mounted cgroup hierarchy.
struct Hierarchy<'a> {
    root: &'a Path,
    mount_point: &'a Path,
    is_v2: bool,
    options: &'a [u8],
}

impl<'a> Hierarchy<'a> {
    /// From a line of mountinfo; `None` if it is another file system's. Escaped names, of which cgroup file systems have
    /// none in practice, are not decoded and so lead nowhere.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let root = fields.nth(3)?;
        let mount_point = fields.next()?;
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let is_v2 = match rest.next()? {
            b"cgroup" => false,
            b"cgroup2" => true,
            _ => return None,
        };
        let path = |bytes: &'a [u8]| Path::new(OsStr::from_bytes(bytes));
        Some(Self { root: path(root), mount_point: path(mount_point), is_v2, options: rest.nth(1)? })
    }

    fn directory(&self, membership: &CgroupMembership) -> Option<PathBuf> {
        let CgroupMembership { controllers, path } = membership;
        let belongs = if controllers.is_empty() {
            self.is_v2
        } else {
            let has = |wanted: &str| self.options.split(|&byte| byte == b',').any(|option| option == wanted.as_bytes());
            !self.is_v2 && controllers.split(',').all(has)
        };
        // A path with `..` lies outside the reader's cgroup namespace (cgroup_namespaces(7)).
        let visible = !path.components().any(|part| part == Component::ParentDir);
        if !belongs || !visible {
            return None;
        }
        Some(self.mount_point.join(path.strip_prefix(self.root).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &[u8] = b"\
30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/systemd rw,nosuid shared:10 - cgroup cgroup rw,xattr,name=systemd
32 25 0:28 /pod1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
34 25 8:1 / /mnt rw - ext4 /dev/sda1 rw
";

    fn files(memberships: &[(&str, &str)]) -> Vec<PathBuf> {
        let memberships: Vec<_> = memberships
            .iter()
            .map(|(controllers, path)| CgroupMembership { controllers: (*controllers).into(), path: path.into() })
            .collect();
        procs_files(&memberships, MOUNTINFO)
    }

    #[test]
    fn each_hierarchy_has_its_place() {
        let expected: [&Path; 4] = [
            Path::new("/sys/fs/cgroup/cpu,cpuacct/a/b/cgroup.procs"),
            Path::new("/sys/fs/cgroup/systemd/s/cgroup.procs"),
            Path::new("/sys/fs/cgroup/memory/inner/cgroup.procs"),
            Path::new("/sys/fs/cgroup/unified/u/cgroup.procs"),
        ];
        let memberships = [("cpu,cpuacct", "/a/b"), ("name=systemd", "/s"), ("memory", "/pod1/inner"), ("", "/u")];
        assert_eq!(files(&memberships), expected);
    }

    #[test]
    fn what_is_not_mounted_or_not_visible_is_left_out() {
        assert!(files(&[("freezer", "/a"), ("memory", "/elsewhere"), ("", "/../x")]).is_empty());
    }
}
