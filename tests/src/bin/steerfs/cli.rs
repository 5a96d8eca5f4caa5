use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// How the process ends, or doesn't.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExitMode {
    /// Signals have their default effect; the process exits once its mounts are gone or aborted.
    Plain,
    /// SIGTERM closes the device, then unmounts, then exits: libfuse's order.
    UnmountOnTerm,
    /// The process stays when its connection was aborted, and keeps the descriptor open.
    StayOnAbort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FsType {
    Fuse,
    /// On a block device.
    Fuseblk,
}

/// A FUSE file system whose faults are commanded while it runs.
///
/// It mounts by mount(2) itself and serves `/hello`, `/file` and `/sub/inner` from memory. Unless --foreground is given
/// it goes to the background once the kernel's FUSE_INIT was answered; until then the command waits.
#[derive(Debug, Parser)]
pub struct Cli {
    /// Where to mount; with --mounts N: `MOUNTPOINT-0` to `MOUNTPOINT-(N-1)`
    #[arg(required_unless_present = "receive")]
    pub mount_point: Option<PathBuf>,
    /// What mountinfo shows as the source
    #[arg(long, default_value = "steerfs")]
    pub source: String,
    /// The file system type becomes `TYPE.NAME`
    #[arg(long, value_name = "NAME")]
    pub subtype: Option<String>,
    /// The kernel's file system type
    #[arg(long, value_enum, default_value = "fuse")]
    pub fstype: FsType,
    /// The block device of a `fuseblk` mount
    #[arg(long, required_if_eq("fstype", "fuseblk"))]
    pub device: Option<PathBuf>,
    /// Leave out `allow_other`: everybody but the owner gets EACCES, root included
    #[arg(long)]
    pub no_allow_other: bool,
    /// Owner of the mount and of every file
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub owner: Option<(u32, u32)>,
    /// Unix socket to be created for commands, one JSON object a line
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve a copy of this directory's files, taken at the start, instead of the fixed ones
    #[arg(long, value_name = "DIR")]
    pub backing: Option<PathBuf>,
    /// For how long the kernel may cache attributes
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub attr_timeout: Duration,
    /// For how long the kernel may cache directory entries
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub entry_timeout: Duration,
    /// How the process ends
    #[arg(long, value_enum, default_value = "plain")]
    pub exit_mode: ExitMode,
    /// Mount, and never read a request: FUSE_INIT is not answered, and nothing is served
    #[arg(long, conflicts_with = "receive")]
    pub mute: bool,
    /// Stay in the foreground
    #[arg(long)]
    pub foreground: bool,
    /// Serve many mounts from one process
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub mounts: Option<u32>,
    /// Mount nothing: wait at this Unix socket for the descriptors of another steerfs and serve on where it stopped
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["mount_point", "mounts", "device"])]
    pub receive: Option<PathBuf>,
}

impl Cli {
    /// Every mount point, absolute: the process leaves its working directory. Purely textual, no file system is asked.
    pub fn mount_points(&self) -> std::io::Result<Vec<PathBuf>> {
        let Some(first) = self.mount_point.as_deref().map(std::path::absolute).transpose()? else {
            return Ok(Vec::new());
        };
        let Some(count) = self.mounts else { return Ok(vec![first]) };
        let numbered = |number| {
            let mut name = first.clone().into_os_string();
            name.push(format!("-{number}"));
            PathBuf::from(name)
        };
        Ok((0..count).map(numbered).collect())
    }

    /// User and group id of the owner: this process's unless told otherwise.
    pub fn owner(&self) -> (u32, u32) {
        self.owner.unwrap_or_else(|| (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()))
    }
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    ids.ok_or_else(|| "expected UID:GID, two numbers".into())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
