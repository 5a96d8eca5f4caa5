//! The ring buffer's records: whatever the bytes, they decode or are refused, and what decodes encodes to the same.
#![no_main]

use detector_common::record::{Record, Wire};
use fuse_detector::kernel::KernelEvent;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = Record::try_from(bytes) else { return };
    assert_eq!(bytes.len(), Wire::LEN);
    let Wire { kind, device, at, process, .. } = Wire::from(record);
    assert_eq!(kind.to_ne_bytes(), bytes[..4]);
    assert_eq!(at.to_ne_bytes(), bytes[8..16]);
    assert_eq!(process.tgid.to_ne_bytes(), bytes[16..20]);
    assert!(device == 0 || device.to_ne_bytes() == bytes[4..8]);
    let _ = KernelEvent::from(record);
});
