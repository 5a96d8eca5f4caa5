//! Where the members of structures lie and what they are, and what functions and tracepoints are given.

use std::collections::HashMap;
use std::fmt;

use thiserror::Error;

use super::{Btf, DEPTH_LIMIT, Type, kind, number};

/// Members that are looked at to find one. The kernel's largest structures have some hundreds; structures that hold
/// one another in a circle, which no compiler emits, would have no end.
const VISIT_LIMIT: u32 = 65_536;

/// A pointer on the 64-bit machines that there is an object for.
const POINTER_LEN: u32 = 8;

/// What a member or an argument is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// A pointer, and the name of the structure that it points to; empty for anything else.
    Pointer(String),
    /// A number, a truth value or an enumeration, of so many bytes.
    Number(u32),
    /// So many elements of so many bytes each.
    Array {
        /// Bytes of an element.
        element: u32,
        /// Elements.
        count: u32,
    },
    /// A structure or union of so many bytes.
    Structure(u32),
    /// Something whose size is unknown.
    Other,
}

impl Shape {
    /// A pointer to a structure of this name.
    pub fn to(structure: &str) -> Self {
        Self::Pointer(structure.to_owned())
    }

    fn size(&self) -> Option<u32> {
        match self {
            Self::Pointer(_) => Some(POINTER_LEN),
            Self::Number(bytes) | Self::Structure(bytes) => Some(*bytes),
            Self::Array { element, count } => element.checked_mul(*count),
            Self::Other => None,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer(structure) if structure.is_empty() => f.write_str("a pointer"),
            Self::Pointer(structure) => write!(f, "a pointer to {}", structure.escape_default()),
            Self::Number(bytes) => write!(f, "a {bytes}-byte number"),
            Self::Array { element, count } => write!(f, "an array of {count} {element}-byte elements"),
            Self::Structure(bytes) => write!(f, "a {bytes}-byte structure"),
            Self::Other => f.write_str("of an unknown type"),
        }
    }
}

/// A member of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the structure's beginning.
    pub offset: u32,
    /// What lies there.
    pub shape: Shape,
}

/// Why a member is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoMember {
    /// There is none of this name, or no such structure.
    #[error("is missing")]
    Absent,
    /// It has no byte of its own.
    #[error("is a bit field")]
    BitField,
    /// Several structures of this name differ in it.
    #[error("is described in several ways")]
    Ambiguous,
    /// The structure is shorter than its members, or contains itself.
    #[error("lies in a structure that makes no sense")]
    Senseless,
}

/// A place in the kernel that a program can be attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A function.
    Function,
    /// A tracepoint. What it is given is told by a type definition, whose first argument is the probe's own data.
    Tracepoint,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Function => "function",
            Self::Tracepoint => "tracepoint",
        })
    }
}

/// Types by name. Each name is looked for once: there are some hundred thousand types.
pub struct Types<'b, 'a> {
    btf: &'b Btf<'a>,
    known: HashMap<(u32, String), Vec<u32>>,
}

impl<'b, 'a> Types<'b, 'a> {
    /// Those of a kernel, or of a kernel and a module.
    pub fn new(btf: &'b Btf<'a>) -> Self {
        Self { btf, known: HashMap::new() }
    }

    fn all(&mut self, kind: u32, name: &str) -> Vec<u32> {
        let known = self.known.entry((kind, name.to_owned()));
        known.or_insert_with(|| self.btf.all(kind, name)).clone()
    }

    /// Whether there is a structure of this name.
    pub fn has_structure(&mut self, name: &str) -> bool {
        !self.all(kind::STRUCT, name).is_empty()
    }

    /// A member of a structure: `["in", "h", "opcode"]` is `in.h.opcode`. Anonymous structures and unions within are looked
    /// into, as C does.
    ///
    /// # Errors
    /// Why it is not known for certain.
    pub fn member(&mut self, structure: &str, path: &[&str]) -> Result<Member, NoMember> {
        let candidates = self.all(kind::STRUCT, structure);
        let members = candidates.into_iter().map(|id| self.btf.member(id, path));
        only(members).ok_or(NoMember::Absent)?.unwrap_or(Err(NoMember::Ambiguous))
    }

    /// What a function or tracepoint is given; `None` when the kernel describes none of this name, or several that differ.
    pub fn arguments(&mut self, place: Place, name: &str) -> Option<Vec<Shape>> {
        let prototypes: Vec<_> = match place {
            Place::Function => {
                let functions = self.all(kind::FUNC, name);
                functions.into_iter().filter_map(|id| self.btf.get(self.btf.get(id)?.other)).collect()
            }
            Place::Tracepoint => {
                let definitions = self.all(kind::TYPEDEF, &format!("btf_trace_{name}"));
                definitions.into_iter().filter_map(|id| self.btf.pointed_to(self.btf.get(id)?.other)).collect()
            }
        };
        let own = usize::from(place == Place::Tracepoint);
        only(prototypes.iter().map(|prototype| self.btf.parameters(prototype, own)))??
    }
}

/// The value that all have in common: `None` if there are none, `Some(None)` if they differ.
fn only<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Option<Option<T>> {
    let mut values = values.into_iter();
    let first = values.next()?;
    Some(values.all(|value| value == first).then_some(first))
}

impl<'a> Btf<'a> {
    fn member(&self, structure: u32, path: &[&str]) -> Result<Member, NoMember> {
        let mut holder = self.get(structure).ok_or(NoMember::Absent)?;
        let (mut offset, mut shape) = (0_u32, Shape::Other);
        let mut visits = 0;
        for (index, name) in path.iter().enumerate() {
            let (at, member) = self.find_in(&holder, name, 0, &mut visits)?;
            offset = offset.checked_add(at).ok_or(NoMember::Senseless)?;
            shape = self.shape(member);
            if index + 1 < path.len() {
                holder = self.strip(member).ok_or(NoMember::Absent)?;
            }
        }
        Ok(Member { offset, shape })
    }

    /// Offset in bytes and type of a member by name.
    fn find_in(&self, holder: &Type<'a>, name: &str, depth: u32, visits: &mut u32) -> Result<(u32, u32), NoMember> {
        if !matches!(holder.kind(), kind::STRUCT | kind::UNION) {
            return Err(NoMember::Absent);
        }
        for entry in holder.tail.chunks_exact(12) {
            *visits += 1;
            if depth > DEPTH_LIMIT || *visits > VISIT_LIMIT {
                return Err(NoMember::Senseless);
            }
            let field = |at| number(entry, at).ok_or(NoMember::Senseless);
            let (string, member, position) = (field(0)?, field(4)?, field(8)?);
            // With the kind flag, the upper eight bits are a bit field's width (btf.rst, BTF_KIND_STRUCT).
            let flagged = holder.info >> 31 != 0;
            let (bits, width) = if flagged { (position & 0xff_ffff, position >> 24) } else { (position, 0) };
            let (at, found) = if self.name_is(string, name) {
                if width != 0 || bits % 8 != 0 {
                    return Err(NoMember::BitField);
                }
                (bits / 8, member)
            } else if self.name_is(string, "") {
                let Some(inner) = self.strip(member) else { continue };
                match self.find_in(&inner, name, depth + 1, visits) {
                    Ok((at, found)) => ((bits / 8).checked_add(at).ok_or(NoMember::Senseless)?, found),
                    Err(NoMember::Absent) => continue,
                    Err(error) => return Err(error),
                }
            } else {
                continue;
            };
            let end = self.shape(found).size().and_then(|size| at.checked_add(size));
            return if end.is_some_and(|end| end > holder.other) { Err(NoMember::Senseless) } else { Ok((at, found)) };
        }
        Err(NoMember::Absent)
    }

    fn shape(&self, id: u32) -> Shape {
        let Some(found) = self.strip(id) else { return Shape::Other };
        match found.kind() {
            kind::INT | kind::ENUM | kind::ENUM64 => Shape::Number(found.other),
            kind::PTR => Shape::Pointer(self.structure_name(found.other)),
            kind::STRUCT | kind::UNION => Shape::Structure(found.other),
            kind::ARRAY => self.array(&found).unwrap_or(Shape::Other),
            _ => Shape::Other,
        }
    }

    /// `struct btf_array`: element, index, and how many. Of arrays of arrays, the size is not asked for.
    fn array(&self, array: &Type<'a>) -> Option<Shape> {
        let element = self.strip(number(array.tail, 0)?)?;
        let element = match element.kind() {
            kind::PTR => POINTER_LEN,
            kind::INT | kind::ENUM | kind::ENUM64 | kind::STRUCT | kind::UNION => element.other,
            _ => return None,
        };
        Some(Shape::Array { element, count: number(array.tail, 8)? })
    }

    fn structure_name(&self, id: u32) -> String {
        let structure = self.strip(id).filter(|found| matches!(found.kind(), kind::STRUCT | kind::UNION | kind::FWD));
        let name = structure.and_then(|found| self.name(found.name)).unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// What a pointer points to.
    fn pointed_to(&self, id: u32) -> Option<Type<'a>> {
        let pointer = self.strip(id).filter(|found| found.kind() == kind::PTR)?;
        self.get(pointer.other)
    }

    /// A prototype's parameters, without the first few.
    fn parameters(&self, prototype: &Type<'a>, skipped: usize) -> Option<Vec<Shape>> {
        if prototype.kind() != kind::FUNC_PROTO {
            return None;
        }
        let parameters = prototype.tail.chunks_exact(8).skip(skipped);
        Some(parameters.map(|parameter| number(parameter, 4).map_or(Shape::Other, |id| self.shape(id))).collect())
    }
}
