//! A reader of BTF (Documentation/bpf/btf.rst in the kernel's source), for what aya's does not tell: where the members
//! of a structure lie, and which arguments a tracepoint has. It borrows the bytes and keeps one offset for each type,
//! checks every bound, and reads split BTF (a module's types, numbered on from the kernel's).
//!
//! The crate `btf-rs` reads the same, but its licence (LGPL) would bind whoever ships the agent as one static binary,
//! and its economical backend maps the file, which the kernel allows since Linux 6.16 only.

use thiserror::Error;

/// `BTF_MAGIC`; read in another byte order it is another number.
const MAGIC: u16 = 0xeb9f;

/// Deeper nesting of anonymous structures, or longer chains of typedefs, than any compiler emits.
const DEPTH_LIMIT: u32 = 32;

/// The bytes are no BTF that this reader understands.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BtfError {
    /// No magic number at the start, or that of the other byte order.
    #[error("BTF starts with {0:#06x}, not with {MAGIC:#06x}")]
    Magic(u16),
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

/// What a tracepoint's argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// A pointer.
    Pointer,
    /// A number.
    Number,
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
        let header = number(bytes, 4).ok_or(BtfError::Short("header"))?;
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

    fn name_is(&self, string: u32, name: &str) -> bool {
        if string < self.first_string {
            return self.base.is_some_and(|base| base.name_is(string, name));
        }
        let found = usize::try_from(string - self.first_string).ok().and_then(|at| self.strings.get(at..));
        found.and_then(|rest| rest.strip_prefix(name.as_bytes())).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The number of the type of this kind and name.
    fn find(&self, kind: u32, name: &str) -> Option<u32> {
        let own = (self.first_id..self.end_id())
            .find(|id| self.get(*id).is_some_and(|found| found.kind() == kind && self.name_is(found.name, name)));
        own.or_else(|| self.base?.find(kind, name))
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

    /// Whether there is a structure of this name.
    pub fn has_struct(&self, name: &str) -> bool {
        self.find(kind::STRUCT, name).is_some()
    }

    /// The offset in bytes of a member of a structure: `["in", "h", "opcode"]` is `in.h.opcode`. Anonymous structures
    /// and unions within are looked into, as C does. `None` when there is none, or when it is a bit field.
    pub fn offset(&self, structure: &str, path: &[&str]) -> Option<u32> {
        let mut holder = self.get(self.find(kind::STRUCT, structure)?)?;
        let mut offset = 0_u32;
        for (index, name) in path.iter().enumerate() {
            let (at, member) = self.member(&holder, name, 0)?;
            offset = offset.checked_add(at)?;
            if index + 1 < path.len() {
                holder = self.strip(member)?;
            }
        }
        Some(offset)
    }

    /// Offset in bytes and type of a member by name.
    fn member(&self, holder: &Type<'a>, name: &str, depth: u32) -> Option<(u32, u32)> {
        if depth > DEPTH_LIMIT || !matches!(holder.kind(), kind::STRUCT | kind::UNION) {
            return None;
        }
        holder.tail.chunks_exact(12).find_map(|entry| {
            let (string, member, position) = (number(entry, 0)?, number(entry, 4)?, number(entry, 8)?);
            // With the kind flag, the upper eight bits are a bit field's width (btf.rst, BTF_KIND_STRUCT).
            let flagged = holder.info >> 31 != 0;
            let (bits, width) = if flagged { (position & 0xff_ffff, position >> 24) } else { (position, 0) };
            if self.name_is(string, name) {
                return (width == 0 && bits % 8 == 0).then_some((bits / 8, member));
            }
            if !self.name_is(string, "") {
                return None;
            }
            let (at, found) = self.member(&self.strip(member)?, name, depth + 1)?;
            Some(((bits / 8).checked_add(at)?, found))
        })
    }

    /// Which argument of a function, counted from 0, is a pointer to one of these structures; `None` when the kernel has no
    /// such function, or none of its arguments is.
    pub fn argument_of(&self, function: &str, structures: &[&str]) -> Option<u32> {
        let prototype = self.get(self.get(self.find(kind::FUNC, function)?)?.other)?;
        let points_to_one = |parameter: &[u8]| {
            let pointer = number(parameter, 4).and_then(|id| self.strip(id));
            let target = pointer.filter(|found| found.kind() == kind::PTR).and_then(|found| self.strip(found.other));
            target.is_some_and(|found| structures.iter().any(|name| self.name_is(found.name, name)))
        };
        prototype.tail.chunks_exact(8).zip(0..).find_map(|(parameter, index)| points_to_one(parameter).then_some(index))
    }

    /// The arguments of a tracepoint, from the prototype of its probes; `None` when the kernel has no such tracepoint.
    pub fn tracepoint(&self, name: &str) -> Option<Vec<Argument>> {
        let definition = self.get(self.find(kind::TYPEDEF, &format!("btf_trace_{name}"))?)?;
        let pointer = self.get(definition.other)?;
        let prototype = self.get(pointer.other)?;
        if pointer.kind() != kind::PTR || prototype.kind() != kind::FUNC_PROTO {
            return None;
        }
        // The first parameter is the probe's own data.
        let parameters = prototype.tail.chunks_exact(8).skip(1);
        Some(
            parameters
                .map(|parameter| match number(parameter, 4).and_then(|id| self.strip(id)) {
                    Some(found) if found.kind() == kind::PTR => Argument::Pointer,
                    _ => Argument::Number,
                })
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// BTF of `types` (each already encoded) and `strings`.
    fn encode(types: &[u8], strings: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        let length = |part: &[u8]| u32::try_from(part.len()).unwrap();
        for field in [24, 0, length(types), length(types), length(strings)] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    const STRINGS: &[u8] = b"\0outer\0inner\0value\0flag\0btf_trace_thing\0work\0";

    /// struct { int value; } inner; struct outer { long; union { struct inner inner; }; int flag:1; };
    /// and a tracepoint `thing(struct outer *, int)`.
    fn sample() -> Vec<u8> {
        let types = words(&[
            0,
            1 << 24,
            4,
            32, // 1: int
            7,
            4 << 24 | 1,
            4,
            13,
            1,
            0, // 2: struct inner { int value; }
            0,
            5 << 24 | 1,
            4,
            7,
            2,
            0, // 3: union { struct inner inner; }
            1,
            1 << 31 | 4 << 24 | 2,
            16,
            0,
            3,
            64,
            19,
            1,
            1 << 24 | 96, // 4: struct outer
            0,
            2 << 24,
            4, // 5: struct outer *
            0,
            13 << 24 | 3,
            0,
            0,
            0,
            0,
            5,
            0,
            1, // 6: void (void *, struct outer *, int)
            0,
            2 << 24,
            6, // 7: pointer to it
            24,
            8 << 24,
            7, // 8: typedef btf_trace_thing
            40,
            12 << 24,
            6, // 9: void work(void *, struct outer *, int)
        ]);
        // The header counts from its own end.
        encode(&types, STRINGS)
    }

    #[test]
    fn members_are_found_through_anonymous_unions() {
        let bytes = sample();
        let btf = Btf::parse(&bytes, None).unwrap();
        assert_eq!(btf.offset("outer", &["inner"]), Some(8));
        assert_eq!(btf.offset("outer", &["inner", "value"]), Some(8));
        assert_eq!(btf.offset("outer", &["flag"]), None, "a bit field has no byte offset");
        assert_eq!(btf.offset("outer", &["nothing"]), None);
        assert_eq!(btf.offset("nothing", &["inner"]), None);
    }

    #[test]
    fn a_tracepoints_arguments_are_told_apart() {
        let bytes = sample();
        let btf = Btf::parse(&bytes, None).unwrap();
        assert_eq!(btf.tracepoint("thing"), Some(vec![Argument::Pointer, Argument::Number]));
        assert_eq!(btf.tracepoint("other"), None);
    }

    #[test]
    fn a_functions_argument_is_found_by_its_type() {
        let bytes = sample();
        let btf = Btf::parse(&bytes, None).unwrap();
        assert_eq!(btf.argument_of("work", &["other", "outer"]), Some(1));
        assert_eq!(btf.argument_of("work", &["inner"]), None);
        assert_eq!(btf.argument_of("outer", &["outer"]), None, "no function");
    }

    #[test]
    fn split_btf_counts_on_from_its_base() {
        let bytes = sample();
        let base = Btf::parse(&bytes, None).unwrap();
        let first_string = u32::try_from(STRINGS.len()).unwrap();
        // 10: struct more { struct outer outer; }, its own name in its own strings, `outer` in the base's.
        let module = encode(&words(&[first_string, 4 << 24 | 1, 16, 1, 4, 0]), b"more\0");
        let module = Btf::parse(&module, Some(&base)).unwrap();
        assert_eq!(module.offset("more", &["outer", "inner", "value"]), Some(8));
        assert_eq!(module.offset("outer", &["inner"]), Some(8));
    }

    #[test]
    fn what_is_no_btf_is_refused() {
        assert_eq!(Btf::parse(b"", None).err(), Some(BtfError::Short("header")));
        assert_eq!(Btf::parse(b"\x7fELF", None).err(), Some(BtfError::Magic(0x457f)));
        let unknown = encode(&words(&[0, 31 << 24, 0]), b"\0");
        assert_eq!(Btf::parse(&unknown, None).err(), Some(BtfError::Kind { id: 1, kind: 31 }));
    }

    proptest! {
        #[test]
        fn damaged_btf_never_panics(at in 0..200_usize, byte: u8, cut in 0..240_usize) {
            let mut bytes = sample();
            if let Some(target) = bytes.get_mut(at) {
                *target = byte;
            }
            bytes.truncate(cut);
            if let Ok(btf) = Btf::parse(&bytes, None) {
                let _ = (btf.offset("outer", &["inner", "value"]), btf.tracepoint("thing"));
            }
        }
    }
}
