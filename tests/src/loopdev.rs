//! Loop devices, for `fuseblk`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sandbox::Sandbox;

/// A block device backed by an empty file of the sandbox. Detached when dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches one. The error says why the machine does not allow it.
    ///
    /// # Errors
    /// What `losetup` says.
    pub fn attach(sandbox: &Sandbox) -> Result<Self, String> {
        let image = sandbox.join("image");
        File::create(&image)
            .and_then(|file| file.set_len(1 << 20))
            .map_err(|error| format!("make an image: {error}"))?;
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let output = output.map_err(|error| format!("losetup (package mount): {error}"))?;
        if !output.status.success() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(Self { path: String::from_utf8_lossy(&output.stdout).trim().into() })
    }

    /// Its path below /dev.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
        if !detached.as_ref().is_ok_and(std::process::ExitStatus::success) {
            eprintln!("losetup --detach {}: {detached:?}", self.path.display());
        }
    }
}
