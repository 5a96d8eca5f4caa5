//! Standard output of the commands that print once and end.

use std::io::{self, Write};

/// How many columns standard output has; `None` when it is no terminal, so that nothing is cut in a pipe.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // Some serial consoles do not know their size and say 0.
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Prints. A reader that has seen enough and closed the pipe is no error.
///
/// # Errors
/// Standard output could not be written.
pub fn print(text: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
