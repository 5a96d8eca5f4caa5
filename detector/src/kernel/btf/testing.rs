//! BTF made to order: kernels that there are, and kernels that there are not.

use super::{HEADER_LEN, MAGIC, kind};

/// Writes types one after another.
#[derive(Default)]
pub struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    first_id: u32,
    first_string: u32,
    count: u32,
}

impl Builder {
    /// A kernel's own types.
    pub fn new() -> Self {
        Self { strings: vec![0], first_id: 1, ..Self::default() }
    }

    /// A module's, numbered on from those of its kernel.
    pub fn over(base: &Self) -> Self {
        let first_string = base.first_string + u32::try_from(base.strings.len()).unwrap();
        Self { first_id: base.first_id + base.count, first_string, ..Self::default() }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.first_string + u32::try_from(self.strings.len()).unwrap();
        self.strings.extend(text.bytes());
        self.strings.push(0);
        at
    }

    /// Any type: `struct btf_type`, and what follows it. Gives its number.
    pub fn raw(&mut self, name: &str, info: u32, other: u32, tail: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, info, other].iter().chain(tail) {
            self.types.extend(word.to_ne_bytes());
        }
        self.count += 1;
        self.first_id + self.count - 1
    }

    /// The number that the next type gets.
    pub fn next(&self) -> u32 {
        self.first_id + self.count
    }

    pub fn int(&mut self, bytes: u32) -> u32 {
        self.raw("int", kind::INT << 24, bytes, &[bytes * 8])
    }

    pub fn pointer(&mut self, to: u32) -> u32 {
        self.raw("", kind::PTR << 24, to, &[])
    }

    pub fn array(&mut self, element: u32, count: u32) -> u32 {
        self.raw("", kind::ARRAY << 24, 0, &[element, element, count])
    }

    pub fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.raw(name, kind::TYPEDEF << 24, of, &[])
    }

    /// Members by name, type and byte offset.
    pub fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        self.composite(kind::STRUCT, name, size, members)
    }

    pub fn union(&mut self, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        self.composite(kind::UNION, "", size, members)
    }

    fn composite(&mut self, kind: u32, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let tail: Vec<u32> = members.iter().flat_map(|(name, id, at)| [self.string(name), *id, at * 8]).collect();
        self.raw(name, kind << 24 | u32::try_from(members.len()).unwrap(), size, &tail)
    }

    fn prototype(&mut self, arguments: &[u32]) -> u32 {
        let tail: Vec<u32> = arguments.iter().flat_map(|id| [0, *id]).collect();
        self.raw("", kind::FUNC_PROTO << 24 | u32::try_from(arguments.len()).unwrap(), 0, &tail)
    }

    pub fn function(&mut self, name: &str, arguments: &[u32]) {
        let prototype = self.prototype(arguments);
        self.raw(name, kind::FUNC << 24, prototype, &[]);
    }

    pub fn tracepoint(&mut self, name: &str, arguments: &[u32]) {
        let prototype = self.prototype(&[&[0], arguments].concat());
        let pointer = self.pointer(prototype);
        self.typedef(&format!("btf_trace_{name}"), pointer);
    }

    /// The whole, as a file.
    pub fn bytes(&self) -> Vec<u8> {
        let length = |part: &[u8]| u32::try_from(part.len()).unwrap();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for field in [HEADER_LEN, 0, length(&self.types), length(&self.types), length(&self.strings)] {
            bytes.extend(field.to_ne_bytes());
        }
        [bytes.as_slice(), &self.types, &self.strings].concat()
    }
}
