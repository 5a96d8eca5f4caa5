use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A device number as the kernel keeps it (`dev_t`, include/linux/kdev_t.h: 12 bits major, 20 bits minor).
///
/// It is written `major:minor` in mountinfo (proc_pid_mountinfo(5)) and as one decimal number in the name of the
/// connection's directory below `/sys/fs/fuse/connections` (`fuse_ctl_add_conn` in fs/fuse/control.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// 0 for the anonymous devices of `fuse`; the block device's for `fuseblk`.
    pub major: u32,
    /// The number of the anonymous device, or the block device's minor number.
    pub minor: u32,
}

impl DeviceNumber {
    const MINOR_BITS: u32 = 20;

    /// From the kernel's own encoding, `major << 20 | minor`: what the FUSE tracepoints and the control file system use.
    pub const fn from_kernel(dev: u32) -> Self {
        Self { major: dev >> Self::MINOR_BITS, minor: dev & ((1 << Self::MINOR_BITS) - 1) }
    }

    /// The kernel's own encoding: the name of the directory below `/sys/fs/fuse/connections`.
    pub const fn to_kernel(self) -> u32 {
        (self.major << Self::MINOR_BITS) | (self.minor & ((1 << Self::MINOR_BITS) - 1))
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl Serialize for DeviceNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text is not `major:minor` within the kernel's bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a device number: expected MAJOR:MINOR, as in 0:45")]
pub struct ParseDeviceNumberError(String);

impl FromStr for DeviceNumber {
    type Err = ParseDeviceNumberError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDeviceNumberError(text.to_owned());
        let (major, minor) = text.split_once(':').ok_or_else(error)?;
        let major: u32 = major.parse().map_err(|_| error())?;
        let minor: u32 = minor.parse().map_err(|_| error())?;
        let device = Self { major, minor };
        if Self::from_kernel(device.to_kernel()) == device { Ok(device) } else { Err(error()) }
    }
}

/// One FUSE connection. The kernel gives a device number to the next mount as soon as it is free, so the number alone
/// is no identity: the epoch counts the connections that had this number since the agent started, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// The device number, reused by the kernel.
    pub device: DeviceNumber,
    /// Which of the connections that had this number.
    pub epoch: u64,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.device, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_encoding_round_trips_beyond_eight_bits_of_minor() {
        let device = DeviceNumber { major: 8, minor: 300 };
        assert_eq!(device.to_kernel(), (8 << 20) | 300);
        assert_eq!(DeviceNumber::from_kernel(device.to_kernel()), device);
    }

    #[test]
    fn text_out_of_the_kernels_bounds_is_refused() {
        assert_eq!("0:45".parse(), Ok(DeviceNumber { major: 0, minor: 45 }));
        for bad in ["", "45", "0:", ":1", "a:b", "-1:2", "0:1048576", "4096:0", "0:1:2", "0: 1"] {
            assert!(bad.parse::<DeviceNumber>().is_err(), "{bad:?} was accepted");
        }
    }
}
