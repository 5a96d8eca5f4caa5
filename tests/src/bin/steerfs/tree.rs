use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::Path;

/// Inode numbers start at the root's, which the protocol fixes (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;

/// Bounds what a backing directory may load into memory.
const MAX_BACKING_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone)]
pub enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<OsString, u64>),
}

#[derive(Debug, Clone)]
pub struct Node {
    pub parent: u64,
    pub content: Content,
}

/// The files that are served, in memory. Inode numbers are positions: two processes with the same arguments give the
/// same file the same number, so that one can serve on where the other stopped.
#[derive(Debug, Clone)]
pub struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// `/file`, `/hello`, `/sub/inner`.
    pub fn fixed() -> Self {
        let mut tree = Self::empty();
        tree.add(ROOT, "file".as_ref(), Content::File(Vec::new()));
        tree.add(ROOT, "hello".as_ref(), Content::File(b"hello from steerfs\n".to_vec()));
        let sub = tree.add(ROOT, "sub".as_ref(), Content::Directory(BTreeMap::new()));
        tree.add(sub, "inner".as_ref(), Content::File(b"inner file of steerfs\n".to_vec()));
        tree
    }

    /// A copy of the files and directories below `backing`, taken now; other kinds of files are left out.
    pub fn copied(backing: &Path) -> io::Result<Self> {
        let mut tree = Self::empty();
        let mut left = MAX_BACKING_BYTES;
        tree.copy(ROOT, backing, &mut left)?;
        Ok(tree)
    }

    fn empty() -> Self {
        Self { nodes: vec![Node { parent: ROOT, content: Content::Directory(BTreeMap::new()) }] }
    }

    fn copy(&mut self, into: u64, from: &Path, left: &mut u64) -> io::Result<()> {
        let mut entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let directory = self.add(into, &entry.file_name(), Content::Directory(BTreeMap::new()));
                self.copy(directory, &entry.path(), left)?;
            } else if kind.is_file() {
                *left = left.checked_sub(entry.metadata()?.len()).ok_or_else(|| {
                    io::Error::other(format!("more than {MAX_BACKING_BYTES} bytes below the backing directory"))
                })?;
                self.add(into, &entry.file_name(), Content::File(fs::read(entry.path())?));
            }
        }
        Ok(())
    }

    fn add(&mut self, parent: u64, name: &OsStr, content: Content) -> u64 {
        self.nodes.push(Node { parent, content });
        let inode = self.nodes.len() as u64;
        if let Some(Content::Directory(entries)) = self.get_mut(parent).map(|node| &mut node.content) {
            entries.insert(name.to_owned(), inode);
        }
        inode
    }

    fn index(inode: u64) -> Option<usize> {
        usize::try_from(inode).ok()?.checked_sub(1)
    }

    pub fn get(&self, inode: u64) -> Option<&Node> {
        self.nodes.get(Self::index(inode)?)
    }

    pub fn get_mut(&mut self, inode: u64) -> Option<&mut Node> {
        self.nodes.get_mut(Self::index(inode)?)
    }

    pub fn lookup(&self, directory: u64, name: &OsStr) -> Option<u64> {
        match &self.get(directory)?.content {
            Content::Directory(entries) => entries.get(name).copied(),
            Content::File(_) => None,
        }
    }

    pub fn len(&self) -> u64 {
        self.nodes.len() as u64
    }
}
