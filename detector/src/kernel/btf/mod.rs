//! A reader of BTF (Documentation/bpf/btf.rst in the kernel's source), for what aya's does not tell: where the members
//! of a structure lie and what they are, and which arguments a function or a tracepoint has ([`members`]). It borrows the
//! bytes and keeps one offset for each type, checks every bound, and reads split BTF (a module's types, numbered on from the
//! kernel's). Whatever the bytes, it neither panics nor runs for long.
//!
//! The crate `btf-rs` reads the same, but its licence (LGPL) would bind whoever ships the agent as one static binary,
//! and its economical backend maps the file, which the kernel allows since Linux 6.16 only.

mod members;

use thiserror::Error;

pub use self::members::{NoMember, Place, Shape, Types};

/// `BTF_MAGIC`; read in another byte order it is another number.
const MAGIC: u16 = 0xeb9f;

/// The only version there is; another one would be another format.
const VERSION: u32 = 1;

/// The header that version 1 has: magic, version, flags, its length, and two sections (btf.rst, `struct btf_header`).
const HEADER_LEN: u32 = 24;

/// Deeper nesting of anonymous structures, or longer chains of typedefs, than any compiler emits.
const DEPTH_LIMIT: u32 = 32;

/// The bytes are no BTF that this reader understands.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BtfError {
    /// No magic number at the start, or that of the other byte order.
    #[error("BTF starts with {0:#06x}, not with {MAGIC:#06x}")]
    Magic(u16),
    /// Another format than the one that is known.
    #[error("BTF is of version {0}, not {VERSION}")]
    Version(u32),
    /// Something lies beyond the end.
    #[error("BTF is cut short in its {0}")]
    Short(&'static str),
    /// A kind of type that came after this reader; its length is unknown, so nothing behind it can be read.
    #[error("BTF type {id} is of the unknown kind {kind}")]
    Kind {
        /// Number of the type.
        id: u32,
        /// Its kind.
        kind: u32,
    },
}

/// `BTF_KIND_*`, those that are looked at.
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
    /// Highest kind known.
    pub const LAST: u32 = ENUM64;
}

/// Every type of a piece of BTF.
pub struct Btf<'a> {
    base: Option<&'a Btf<'a>>,
    types: &'a [u8],
    strings: &'a [u8],
    /// Where in `types` each one begins; the first of them is number `first_id`.
    offsets: Vec<u32>,
    first_id: u32,
    first_string: u32,
}

/// `struct btf_type` and what follows it.
struct Type<'a> {
    name: u32,
    info: u32,
    /// Size or type, by kind.
    other: u32,
    tail: &'a [u8],
}

impl Type<'_> {
    const fn kind(&self) -> u32 {
        (self.info >> 24) & 0x1f
    }

    /// Members, parameters, values: by kind.
    const fn count(&self) -> usize {
        (self.info & 0xffff) as usize
    }

    /// Bytes after the twelve that every type has.
    fn tail_len(kind: u32, count: usize) -> usize {
        match kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
            kind::ENUM | kind::FUNC_PROTO => 8 * count,
            _ => 0,
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*field))
}

/// The part of `bytes` that a section's offset and length, counted from the end of the header, name.
fn section<'a>(bytes: &'a [u8], header: u32, at: usize, name: &'static str) -> Result<&'a [u8], BtfError> {
    let found = || {
        let start = usize::try_from(header.checked_add(number(bytes, at)?)?).ok()?;
        let length = usize::try_from(number(bytes, at + 4)?).ok()?;
        bytes.get(start..start.checked_add(length)?)
    };
    found().ok_or(BtfError::Short(name))
}

impl<'a> Btf<'a> {
    /// Reads the kernel's own BTF, or with a `base` the BTF of a module.
    ///
    /// # Errors
    /// When the bytes are no BTF, or hold a kind of type that is unknown here.
    pub fn parse(bytes: &'a [u8], base: Option<&'a Btf<'a>>) -> Result<Self, BtfError> {
        let start = number(bytes, 0).ok_or(BtfError::Short("header"))?;
        let magic = (start & 0xffff) as u16;
        // The first field is the lower half of the word only on little-endian machines, the only ones there is an
        // object for.
        if magic != MAGIC {
            return Err(BtfError::Magic(magic));
        }
        let version = (start >> 16) & 0xff;
        if version != VERSION {
            return Err(BtfError::Version(version));
        }
        let header = number(bytes, 4).filter(|header| *header >= HEADER_LEN).ok_or(BtfError::Short("header"))?;
        let mut btf = Self {
            base,
            types: section(bytes, header, 8, "types")?,
            strings: section(bytes, header, 16, "strings")?,
            offsets: Vec::new(),
            first_id: base.map_or(1, Self::end_id),
            first_string: base.map_or(0, Self::end_string),
        };
        btf.index()?;
        Ok(btf)
    }

    fn index(&mut self) -> Result<(), BtfError> {
        let mut at = 0;
        while at < self.types.len() {
            let id = self.end_id();
            let info = number(self.types, at + 4).ok_or(BtfError::Short("types"))?;
            let header = Type { name: 0, info, other: 0, tail: &[] };
            let kind = header.kind();
            if kind == 0 || kind > kind::LAST {
                return Err(BtfError::Kind { id, kind });
            }
            self.offsets.push(u32::try_from(at).map_err(|_| BtfError::Short("types"))?);
            at += 12 + Type::tail_len(kind, header.count());
        }
        if at > self.types.len() { Err(BtfError::Short("types")) } else { Ok(()) }
    }

    fn end_id(&self) -> u32 {
        self.first_id.saturating_add(u32::try_from(self.offsets.len()).unwrap_or(u32::MAX))
    }

    fn end_string(&self) -> u32 {
        self.first_string.saturating_add(u32::try_from(self.strings.len()).unwrap_or(u32::MAX))
    }

    fn get(&self, id: u32) -> Option<Type<'a>> {
        if id < self.first_id {
            return self.base?.get(id);
        }
        let at = usize::try_from(*self.offsets.get(usize::try_from(id - self.first_id).ok()?)?).ok()?;
        let info = number(self.types, at + 4)?;
        let mut found = Type { name: number(self.types, at)?, info, other: number(self.types, at + 8)?, tail: &[] };
        let length = Type::tail_len(found.kind(), found.count());
        found.tail = self.types.get(at + 12..)?.get(..length)?;
        Some(found)
    }

    /// A string of this piece or of its base, without the zero at its end.
    fn name(&self, string: u32) -> Option<&'a [u8]> {
        if string < self.first_string {
            return self.base?.name(string);
        }
        let rest = self.strings.get(usize::try_from(string - self.first_string).ok()?..)?;
        rest.get(..rest.iter().position(|byte| *byte == 0)?)
    }

    fn name_is(&self, string: u32, name: &str) -> bool {
        if string < self.first_string {
            return self.base.is_some_and(|base| base.name_is(string, name));
        }
        let found = usize::try_from(string - self.first_string).ok().and_then(|at| self.strings.get(at..));
        found.and_then(|rest| rest.strip_prefix(name.as_bytes())).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The numbers of all types of this kind and name.
    fn all(&self, kind: u32, name: &str) -> Vec<u32> {
        let mut found = self.base.map(|base| base.all(kind, name)).unwrap_or_default();
        let fits = |id: &u32| self.get(*id).is_some_and(|found| found.kind() == kind && self.name_is(found.name, name));
        found.extend((self.first_id..self.end_id()).filter(fits));
        found
    }

    /// Follows typedefs and qualifiers.
    fn strip(&self, mut id: u32) -> Option<Type<'a>> {
        for _ in 0..DEPTH_LIMIT {
            let found = self.get(id)?;
            match found.kind() {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => id = found.other,
                _ => return Some(found),
            }
        }
        None
    }
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
