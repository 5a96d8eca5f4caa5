use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::recovery::CgroupMembership;
use crate::text::printable;

/// Where a process is put so that it has some memberships.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// The `cgroup.procs` files to write its id to.
    pub procs: Vec<PathBuf>,
    /// What is not as it was.
    pub notes: Vec<String>,
}

/// Finds the places according to a mountinfo. Memberships of hierarchies that are not mounted, or of cgroups outside the visible
/// part, are left out.
///
/// A service manager removes a cgroup when its last process ends. It is made again, without the limits that it had; where not even
/// its parent is left, the nearest ancestor has to do. Never the launcher's own: what is in there ends with the agent's service.
pub(super) fn prepare(memberships: &[CgroupMembership], mountinfo: &[u8]) -> Places {
    let own = own_memberships();
    let mut places = Places::default();
    for (membership, hierarchy, directory) in directories(memberships, mountinfo) {
        let own = own.iter().find(|own| own.controllers == membership.controllers);
        let own = own.and_then(|own| hierarchy.directory(own));
        let place = if directory.is_dir() {
            Some(directory)
        } else if make_again(&directory).is_ok() {
            places.notes.push(format!("cgroup {} was gone and is made again, without limits", shown(&directory)));
            Some(directory)
        } else {
            let instead = hierarchy.nearest(&directory, own.as_deref());
            let where_to = instead.as_deref().map_or_else(|| "the agent's".to_owned(), shown);
            places.notes.push(format!("cgroup {} is gone, {where_to} takes its place", shown(&directory)));
            instead
        };
        places.procs.extend(place.map(|place| place.join("cgroup.procs")));
    }
    places
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str())
}

fn directories<'a>(
    memberships: &'a [CgroupMembership],
    mountinfo: &'a [u8],
) -> Vec<(&'a CgroupMembership, Hierarchy<'a>, PathBuf)> {
    let hierarchies: Vec<_> = mountinfo.split(|&byte| byte == b'\n').filter_map(Hierarchy::parse).collect();
    let found = |membership| {
        let place = |hierarchy: &Hierarchy<'a>| Some((membership, *hierarchy, hierarchy.directory(membership)?));
        hierarchies.iter().find_map(place)
    };
    memberships.iter().filter_map(found).collect()
}

fn own_memberships() -> Vec<CgroupMembership> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some(CgroupMembership { controllers: fields.next()?.to_owned(), path: fields.next()?.into() })
    };
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Fails if its parent is gone, too.
fn make_again(directory: &Path) -> io::Result<()> {
    std::fs::create_dir(directory)?;
    // Of version 1, a new one has no processor and no memory, and nobody can enter it before (cpuset(7)).
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let parent = directory.parent().map(|parent| parent.join(file));
        if let Some(Ok(value)) = parent.map(std::fs::read) {
            let _ = std::fs::write(directory.join(file), value);
        }
    }
    Ok(())
}

/// Moves the calling process into the cgroup. One that has gone since is passed over.
pub(super) fn enter(procs: &Path) -> io::Result<()> {
    // 0 is the writer itself (cgroups(7)).
    match std::fs::write(procs, "0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// A mounted cgroup hierarchy.
#[derive(Clone, Copy)]
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

    /// The first directory above that is there and takes processes: of version 2, none that distributes controllers does, but the
    /// root ("no internal processes" in cgroups(7)).
    fn nearest(&self, directory: &Path, own: Option<&Path>) -> Option<PathBuf> {
        let takes_processes = |above: &&Path| {
            let distributes = std::fs::read(above.join("cgroup.subtree_control")).is_ok_and(|text| !text.is_empty());
            above.is_dir() && Some(*above) != own && (!distributes || *above == self.mount_point)
        };
        let above = directory.ancestors().skip(1).take_while(|above| above.starts_with(self.mount_point));
        above.into_iter().find(takes_processes).map(Path::to_owned)
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
        directories(&memberships, MOUNTINFO).into_iter().map(|(.., directory)| directory.join("cgroup.procs")).collect()
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
