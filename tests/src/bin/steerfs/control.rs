//! Commands over the control socket.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use fuse_detector_tests::steer::{Answer, Command};

use crate::faults::Fault;
use crate::server::Server;

/// Creates a listening socket, in the place of one that a killed process left behind.
pub fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("remove {}", path.display()));
        }
        _ => {}
    }
    UnixListener::bind(path).with_context(|| format!("bind {}", path.display()))
}

/// Serves the socket, each client in a thread of its own.
pub fn serve(listener: UnixListener, server: Arc<Server>) -> std::io::Result<()> {
    thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&server);
            thread::spawn(move || serve_client(&stream, &server));
        }
    })?;
    Ok(())
}

fn serve_client(stream: &UnixStream, server: &Server) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let command = serde_json::from_str::<Command>(&line);
        let answer = match &command {
            Ok(command) => carry_out(command, server).unwrap_or_else(|error| refusal(&format!("{error:#}"))),
            Err(error) => refusal(&error.to_string()),
        };
        let Ok(mut text) = serde_json::to_string(&answer) else { return };
        text.push('\n');
        let mut writer = stream;
        if writer.write_all(text.as_bytes()).is_err() {
            return;
        }
        if let Ok(Command::Exit { code, unmount }) = command {
            server.end(code, unmount);
        }
    }
}

fn refusal(error: &str) -> Answer {
    Answer { error: Some(error.to_owned()), ..Answer::default() }
}

fn carry_out(command: &Command, server: &Server) -> anyhow::Result<Answer> {
    let mut answer = Answer { ok: true, ..Answer::default() };
    let faults = &server.faults;
    match command {
        Command::Delay { opcode, millis } => faults.set(*opcode, Fault::Delay(Duration::from_millis(*millis))),
        Command::Never { opcode } => faults.set(*opcode, Fault::Never),
        Command::Errno { opcode, errno } => faults.set(*opcode, Fault::Errno(*errno)),
        Command::Reset(_) => faults.reset(),
        // Carried out once the answer is on its way.
        Command::Exit { .. } => {}
        Command::HoldDescriptor(_) => answer.pid = server.hold_descriptors()?.first().copied(),
        Command::PassDescriptor(socket) => server.pass_on(socket)?,
        Command::Stats(_) => answer.stats = Some(faults.stats()),
    }
    Ok(answer)
}
