//! Archives in the format that the kernel unpacks as its first root file system: "newc", Documentation/driver-api/
//! early-userspace/buffer-format.rst. Several of them may follow each other in one file.

use std::io::{self, Write};

/// What file types are written as (inode(7)).
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// Marks the end of an archive.
const TRAILER: &str = "TRAILER!!!";

/// Writes one archive.
pub struct Archive<W> {
    output: W,
    /// Each entry has its own, or the kernel takes it for a hard link.
    inode: u32,
}

impl<W: Write> Archive<W> {
    /// Begins.
    pub const fn new(output: W) -> Self {
        Self { output, inode: 0 }
    }

    /// A directory; those above it have to be there before.
    ///
    /// # Errors
    /// write(2)'s.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY, b"")
    }

    /// A file, executable as nothing in a machine for tests needs to be otherwise.
    ///
    /// # Errors
    /// write(2)'s.
    pub fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.entry(path, PROGRAM, content)
    }

    /// A symbolic link.
    ///
    /// # Errors
    /// write(2)'s.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, LINK, target.as_bytes())
    }

    /// Ends the archive; gives back what it was written to.
    ///
    /// # Errors
    /// write(2)'s.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry(TRAILER, 0, b"")?;
        Ok(self.output)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        let too_long = |_| io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} is too large for this format"));
        let size = u32::try_from(content.len()).map_err(too_long)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_long)?;
        self.inode += 1;
        // Inode, mode, owner, group, links, modification time, size, device (2), device that it is (2), name, checksum.
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let header: String = std::iter::once("070701".to_owned())
            .chain(fields.iter().map(|field| format!("{field:08x}")))
            .chain([path.to_owned(), "\0".to_owned()])
            .collect();
        for part in [header.as_bytes(), content] {
            self.output.write_all(part)?;
            self.output.write_all(&[0; 3][..part.len().next_multiple_of(4) - part.len()])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_begins_at_a_multiple_of_four() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("/a").unwrap();
        archive.file("/a/file", b"12345").unwrap();
        archive.link("b", "a").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let headers: Vec<usize> =
            bytes.windows(6).enumerate().filter(|(_, w)| *w == b"070701").map(|(i, _)| i).collect();
        assert_eq!(headers.len(), 4);
        assert!(headers.iter().all(|offset| offset % 4 == 0));
        let file = &bytes[headers[1]..headers[2]];
        assert_eq!(&file[54..62], b"00000005", "its size is the seventh field");
        assert_eq!(&file[110..], b"a/file\0\0\0\x0012345\0\0\0");
    }
}
