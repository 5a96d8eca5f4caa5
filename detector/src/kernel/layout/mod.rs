//! What the programs have to know about this kernel, read from its BTF.

mod calls;
mod members;

use std::path::Path;
use std::{fmt, fs, io};

use detector_common::layout::Layout;
use thiserror::Error;

use super::btf::{Btf, BtfError, Place, Types};

pub use self::calls::calls;

/// The kernel's own types.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
/// FUSE's types where it is a module.
const MODULE_BTF: &str = "/sys/kernel/btf/fuse";
/// One file for the kernel, and one for each module that describes its types.
const BTF_DIRECTORY: &str = "/sys/kernel/btf";
/// A structure that daemons exchange with the kernel (include/uapi/linux/fuse.h), so that every FUSE there is has it under
/// this name.
const EVERY_FUSE: &str = "fuse_in_header";

/// The kernel's types could not be read.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// The file is not there (`CONFIG_DEBUG_INFO_BTF` is off) or is not readable.
    #[error("cannot read the kernel's types from {path}: {error}")]
    Read {
        /// Which file.
        path: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Its content is not understood.
    #[error("{path}: {error}")]
    Parse {
        /// Which file.
        path: &'static str,
        /// Why.
        error: BtfError,
    },
}

/// What was found.
pub struct Kernel {
    /// Where the members lie; [`Layout::NOWHERE`] for those that don't fit.
    pub layout: Layout,
    /// Members and places that are not as the programs take them to be.
    pub unfit: Vec<Unfit>,
    /// What `oom:mark_victim` passes first.
    pub victim: Option<Argument>,
    /// FUSE's types are described, in whatever terms.
    pub described: bool,
    /// FUSE's members were taken from the table of kernels without BTF for modules: to be trusted only once a
    /// connection that is known has been seen through them.
    pub assumed: bool,
}

/// What a tracepoint's argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// A pointer.
    Pointer,
    /// A number.
    Number,
}

/// Something that is not as the programs take it to be: with it, they would read something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// `structure.member`, or the name of the place.
    pub name: &'static str,
    /// Whether it is a place that programs are attached to.
    pub place: Option<Place>,
    /// What is wrong, as the rest of a sentence that begins with the name.
    pub why: String,
}

impl Unfit {
    /// Whether it is FUSE's.
    pub fn is_about_fuse(&self) -> bool {
        self.name.starts_with("fuse_")
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, place, why } = self;
        match place {
            Some(place) => write!(f, "the {place} {name} {why}"),
            None => write!(f, "{name} {why}"),
        }
    }
}

/// What the kernel tells of its types, as bytes.
pub struct Described<'a> {
    /// The kernel's own.
    pub kernel: &'a [u8],
    /// FUSE's, where it is a module.
    pub module: Option<&'a [u8]>,
    /// Whether there is BTF of any module: then this kernel is younger than the table for those without.
    pub modules: bool,
}

/// Reads the layout of the running kernel. Costs a few megabytes while it runs, and keeps none.
///
/// # Errors
/// When the kernel's BTF can't be read. What does not fit is no error: it is listed.
pub fn read() -> Result<Kernel, LayoutError> {
    let kernel = read_file(KERNEL_BTF)?;
    let module = if Path::new(MODULE_BTF).exists() { Some(read_file(MODULE_BTF)?) } else { None };
    let listed = fs::read_dir(BTF_DIRECTORY).map_or(0, Iterator::count);
    resolve(&Described { kernel: &kernel, module: module.as_deref(), modules: listed > 1 })
}

fn read_file(path: &'static str) -> Result<Vec<u8>, LayoutError> {
    fs::read(path).map_err(|error| LayoutError::Read { path, error })
}

/// The layout that is described.
///
/// # Errors
/// When the bytes are no BTF that is understood.
pub fn resolve(described: &Described<'_>) -> Result<Kernel, LayoutError> {
    let parse = |path, bytes, base| Btf::parse(bytes, base).map_err(|error| LayoutError::Parse { path, error });
    let base = parse(KERNEL_BTF, described.kernel, None)?;
    let built_in = Types::new(&base).has_structure(EVERY_FUSE);
    let kernel = match described.module {
        Some(module) if !built_in => members::resolve(&parse(MODULE_BTF, module, Some(&base))?),
        _ => members::resolve(&base),
    };
    // Where FUSE is described, in whatever terms, or could be, the table is about another kernel.
    let told = built_in || described.module.is_some();
    let kernel = Kernel { described: told, ..kernel };
    Ok(if told || described.modules { kernel } else { assume(kernel) })
}

/// Linux 5.10, where FUSE is a module, has no BTF for modules (`CONFIG_DEBUG_INFO_BTF_MODULES` came with 5.11). This is how
/// FUSE lies in memory there on x86-64 and, by the same rules of alignment, arm64, with `CONFIG_VIRTIO_FS` on or off.
fn assume(kernel: Kernel) -> Kernel {
    let Kernel { layout, mut unfit, .. } = kernel;
    unfit.retain(|unfit| !unfit.is_about_fuse());
    let layout = Layout {
        request_flags: 48,
        request_opcode: 60,
        request_pid: 88,
        reply_error: 100,
        reply_unique: 104,
        request_owner: 144,
        owner_connection: 0,
        connected: 296,
        connection_device: 336,
        has_chan: 0,
        refused_argument: 0,
        ..layout
    };
    Kernel { layout, unfit, assumed: true, ..kernel }
}

#[cfg(test)]
mod tests;
