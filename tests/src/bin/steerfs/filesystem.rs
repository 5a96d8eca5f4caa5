use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuse_detector_tests::steer::Opcode;
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::faults::Faults;
use crate::tree::{Content, Tree};

const BLOCK_SIZE: u32 = 4096;

/// One request may carry at most this much data: the size that libfuse 2 used, plenty here.
const MAX_WRITE: u32 = 128 << 10;

/// How long the kernel may answer for us without asking.
#[derive(Debug, Clone, Copy)]
pub struct CacheTimes {
    pub attributes: Duration,
    pub entries: Duration,
}

/// Serves a [`Tree`]. Cheap to clone: the tree is shared.
#[derive(Debug, Clone)]
pub struct SteerFs {
    pub tree: Arc<Mutex<Tree>>,
    pub faults: Arc<Faults>,
    pub cache: CacheTimes,
    /// Whom every file belongs to: user and group id.
    pub owner: (u32, u32),
}

impl SteerFs {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, tree: &Tree, inode: u64) -> Option<FileAttr> {
        let (kind, perm, nlink, size) = match &tree.get(inode)?.content {
            Content::File(bytes) => (FileType::RegularFile, 0o644, 1, bytes.len() as u64),
            Content::Directory(_) => (FileType::Directory, 0o755, 2, 0),
        };
        Some(FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK_SIZE,
            flags: 0,
        })
    }

    fn reply_attributes(&self, inode: u64, reply: ReplyAttr) {
        match self.attributes(&self.tree(), inode) {
            Some(attributes) => reply.attr(&self.cache.attributes, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn reply_entry(&self, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let tree = self.tree();
        match tree.lookup(parent, name).and_then(|inode| self.attributes(&tree, inode)) {
            Some(attributes) => {
                reply.entry_with_ttls(&self.cache.attributes, &self.cache.entries, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn reply_bytes(&self, inode: u64, offset: u64, size: u32, reply: ReplyData) {
        match self.tree().get(inode).map(|node| &node.content) {
            Some(Content::File(bytes)) => {
                let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
                reply.data(rest.get(..size as usize).unwrap_or(rest));
            }
            Some(Content::Directory(_)) => reply.error(Errno::EISDIR),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn reply_written(&self, inode: u64, offset: u64, data: &[u8], reply: ReplyWrite) {
        match self.tree().get_mut(inode).map(|node| &mut node.content) {
            Some(Content::File(bytes)) => {
                let (Ok(start), Ok(length)) = (usize::try_from(offset), u32::try_from(data.len())) else {
                    return reply.error(Errno::EFBIG);
                };
                let end = start.saturating_add(data.len());
                if end > bytes.len() {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(data);
                reply.written(length);
            }
            Some(Content::Directory(_)) => reply.error(Errno::EISDIR),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn reply_directory(&self, inode: u64, offset: u64, mut reply: ReplyDirectory) {
        let tree = self.tree();
        let Some((parent, Content::Directory(entries))) = tree.get(inode).map(|node| (node.parent, &node.content))
        else {
            return reply.error(Errno::ENOTDIR);
        };
        let dots = [(OsString::from("."), inode), (OsString::from(".."), parent)];
        let all = dots.iter().map(|(name, inode)| (name, inode)).chain(entries);
        for (position, (name, inode)) in (1..).zip(all).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let kind = match tree.get(*inode).map(|node| &node.content) {
                Some(Content::File(_)) => FileType::RegularFile,
                Some(Content::Directory(_)) | None => FileType::Directory,
            };
            if reply.add(INodeNo(*inode), position, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn resize(&self, inode: u64, size: Option<u64>) {
        if let (Some(size), Some(Content::File(bytes))) =
            (size.and_then(|size| usize::try_from(size).ok()), self.tree().get_mut(inode).map(|node| &mut node.content))
        {
            bytes.resize(size, 0);
        }
    }

    fn reply_statfs(&self, reply: ReplyStatfs) {
        let (blocks, free, names) = (1 << 20, 1 << 19, 255);
        reply.statfs(blocks, free, free, self.tree().len(), 1 << 10, BLOCK_SIZE, names, BLOCK_SIZE);
    }
}

impl Filesystem for SteerFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config
            .set_max_write(MAX_WRITE)
            .map(drop)
            .map_err(|nearest| io::Error::other(format!("largest possible write request: {nearest} bytes")))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (this, name) = (self.clone(), name.to_owned());
        self.faults.answer(Opcode::Lookup, reply, move |reply| this.reply_entry(parent.0, &name, reply));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let this = self.clone();
        self.faults.answer(Opcode::Getattr, reply, move |reply| this.reply_attributes(inode.0, reply));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let this = self.clone();
        self.faults.answer(Opcode::Setattr, reply, move |reply| {
            this.resize(inode.0, size);
            this.reply_attributes(inode.0, reply);
        });
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.faults.answer(Opcode::Open, reply, |reply| reply.opened(FileHandle(0), FopenFlags::empty()));
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let this = self.clone();
        self.faults.answer(Opcode::Read, reply, move |reply| this.reply_bytes(inode.0, offset, size, reply));
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (this, data) = (self.clone(), data.to_vec());
        self.faults.answer(Opcode::Write, reply, move |reply| this.reply_written(inode.0, offset, &data, reply));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.faults.answer(Opcode::Flush, reply, ReplyEmpty::ok);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.faults.answer(Opcode::Release, reply, ReplyEmpty::ok);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.faults.answer(Opcode::Fsync, reply, ReplyEmpty::ok);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.faults.answer(Opcode::Opendir, reply, |reply| reply.opened(FileHandle(0), FopenFlags::empty()));
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        let this = self.clone();
        self.faults.answer(Opcode::Readdir, reply, move |reply| this.reply_directory(inode.0, offset, reply));
    }

    fn releasedir(&self, _: &Request, _: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.faults.answer(Opcode::Releasedir, reply, ReplyEmpty::ok);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let this = self.clone();
        self.faults.answer(Opcode::Statfs, reply, move |reply| this.reply_statfs(reply));
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        self.faults.answer(Opcode::Access, reply, ReplyEmpty::ok);
    }
}
