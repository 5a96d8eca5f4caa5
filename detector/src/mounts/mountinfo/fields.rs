//! The alphabet of mountinfo: fields between single spaces, decimal numbers, octal escapes.

use std::fmt;

/// A field of a mountinfo line, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// First field.
    MountId,
    /// Second field.
    Parent,
    /// Third field.
    Device,
    /// Fourth field.
    Root,
    /// Fifth field.
    MountPoint,
    /// Sixth field: the mount's options.
    Options,
    /// Zero or more fields of propagation.
    Optional,
    /// First field behind the separator.
    FsType,
    /// Second field behind the separator.
    Source,
    /// Third field behind the separator.
    SuperOptions,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MountId => "mount id",
            Self::Parent => "parent's mount id",
            Self::Device => "device number",
            Self::Root => "root",
            Self::MountPoint => "mount point",
            Self::Options => "mount's options",
            Self::Optional => "optional field",
            Self::FsType => "file system type",
            Self::Source => "source",
            Self::SuperOptions => "superblock's options",
        })
    }
}

/// The first field, and what follows the space behind it; `None` when no space follows. Fields lie between single
/// spaces, because a field can be empty: a source of no characters is written as nothing (`show_mountinfo`).
pub fn next(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|&byte| byte == b' ') {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
        None => (text, None),
    }
}

/// A decimal number without a sign.
pub fn decimal(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0_u64, |number, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The bytes that the kernel escaped (`string_escape_mem` with `ESCAPE_OCTAL`, called by `mangle` and `seq_path`): a
/// backslash and always three octal digits. `None` for a backslash that anything else follows, since the kernel escapes
/// the backslash itself.
pub fn unescape(field: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let [high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', tail @ ..] = rest else {
            return None;
        };
        bytes.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
        rest = tail;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_escapes_are_three_digits_of_one_byte() {
        assert_eq!(unescape(br"a\040b\011\012\134\043\377").unwrap(), b"a b\t\n\\#\xff");
        for bad in [&br"\"[..], br"\04", br"\048", br"\400", br"\x20", br"\\"] {
            assert_eq!(unescape(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_have_digits_only() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"+1", b"-1", b"1a", b"18446744073709551616", b" 1"] {
            assert_eq!(decimal(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_empty_field_is_a_field() {
        assert_eq!(next(b"a  b"), (&b"a"[..], Some(&b" b"[..])));
        assert_eq!(next(b" b"), (&b""[..], Some(&b"b"[..])));
        assert_eq!(next(b"b"), (&b"b"[..], None));
    }
}
