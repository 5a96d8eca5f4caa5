//! Messages on a stream socket: four bytes of length, least significant first, then as many bytes of JSON. A stream rather
//! than packets, because a job with a large environment or a thousand mounts exceeds what a packet may hold.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest message. An environment and arguments are limited to 6 MiB by the kernel (execve(2)) and double at most
/// when escaped; 10,000 mounts take about as much again.
const MAX_BYTES: u32 = 32 << 20;

/// The bytes of one message, length included.
///
/// # Errors
/// The message exceeds the limit.
pub(super) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length <= MAX_BYTES);
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
    for (place, byte) in bytes.iter_mut().zip(length.to_le_bytes()) {
        *place = byte;
    }
    Ok(bytes)
}

/// The length that follows, if it is one.
///
/// # Errors
/// It exceeds the limit.
pub(super) fn length(header: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(header);
    if length > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    usize::try_from(length).map_err(io::Error::other)
}

/// The message in these bytes.
///
/// # Errors
/// It is none.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads the bytes of one message; `None` at the end of the stream.
///
/// # Errors
/// As read(2); an end within a message; a length beyond the limit.
pub(super) fn read(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; 4];
    match stream.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut bytes = vec![0; length(header)?];
    stream.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

/// Writes one message.
///
/// # Errors
/// As write(2); the message exceeds the limit.
pub(super) fn write<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    stream.write_all(&encode(message)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_come_through(messages in prop::collection::vec(".*", 0..5)) {
            let mut stream = Vec::new();
            for message in &messages {
                write(&mut stream, message).unwrap();
            }
            let mut stream = stream.as_slice();
            let mut back: Vec<String> = Vec::new();
            while let Some(bytes) = read(&mut stream).unwrap() {
                back.push(decode(&bytes).unwrap());
            }
            prop_assert_eq!(back, messages);
        }

        #[test]
        fn any_bytes_are_an_error_not_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some(body)) = read(&mut bytes.as_slice()) {
                let _ = decode::<super::super::protocol::Request>(&body);
            }
        }
    }

    #[test]
    fn a_length_beyond_the_limit_allocates_nothing() {
        assert_eq!(read(&mut [0xff_u8; 8].as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
