//! Bytes from outside, made fit for text: reversible where it is not UTF-8, and harmless on a terminal.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Whether the bytes are not UTF-8, so that text has to escape them.
pub fn needs_escape(bytes: &OsStr) -> bool {
    bytes.to_str().is_none()
}

/// The text as it is when it is UTF-8; else escaped as by [`escape_always`]. The flag says which.
pub fn escape(bytes: &OsStr) -> (String, bool) {
    match bytes.to_str() {
        Some(text) => (text.to_owned(), false),
        None => (escape_always(bytes), true),
    }
}

/// Every backslash doubled, every byte that is part of no UTF-8 character as `\xHH`. [`unescape`] gives the bytes back.
pub fn escape_always(bytes: &OsStr) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' {
                text.push('\\');
            }
            text.push(character);
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The bytes of a text made by [`escape_always`]; `None` if it is none.
pub fn unescape(text: &str) -> Option<OsString> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest {
            [b'\\', tail @ ..] => {
                bytes.push(b'\\');
                rest = tail;
            }
            [b'x', high, low, tail @ ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                bytes.push(u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?);
                rest = tail;
            }
            _ => return None,
        }
    }
    Some(OsString::from_vec(bytes))
}

/// For a terminal or a log line: control characters and bytes that are not UTF-8 become visible escapes, so that a path
/// made by somebody hostile neither starts a new line, nor moves the cursor, nor shows text in another order than it is in.
pub fn printable(bytes: &OsStr) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || rearranges(character) {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Line and paragraph separators, and the characters that change the direction of text (Unicode Standard Annex #9).
const fn rearranges(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn escaping_is_reversible(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let bytes = OsString::from_vec(bytes);
            prop_assert_eq!(unescape(&escape_always(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn utf8_stays_as_it_is() {
        assert_eq!(escape(OsStr::new("/mnt/ä b\\c\n")), ("/mnt/ä b\\c\n".to_owned(), false));
    }

    #[test]
    fn a_terminal_sees_no_control_character() {
        assert_eq!(printable(OsStr::from_bytes(b"/a\n\x1b[2J\xff")), "/a\\n\\u{1b}[2J\\xff");
        assert_eq!(printable(OsStr::new("/\u{202e}tset\u{2066}\u{2029}é")), "/\\u{202e}tset\\u{2066}\\u{2029}é");
    }
}
