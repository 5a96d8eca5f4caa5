//! The thin binary: everything is in the library.

use std::process::ExitCode;

use fuse_detector::{cli, worker};

fn main() -> ExitCode {
    // Before anything else: a worker process is this program, but has no business with arguments or a runtime.
    if worker::is_worker_invocation() {
        return worker::main();
    }
    cli::main()
}
