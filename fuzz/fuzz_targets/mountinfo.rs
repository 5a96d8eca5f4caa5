//! Any bytes as a mount table: the parser neither panics nor loses count.
//!
//! `cargo +nightly fuzz run mountinfo`

#![no_main]

use fuse_detector::model::NamespaceId;
use fuse_detector::mounts::mountinfo;

libfuzzer_sys::fuzz_target!(|content: &[u8]| {
    let parsed = mountinfo::parse(content, NamespaceId(1));
    assert_eq!(parsed.entries, content.split_inclusive(|&byte| byte == b'\n').count());
    assert!(parsed.mounts.len() + parsed.problems.len() <= parsed.entries);
    let ids: Vec<_> = parsed.mounts.iter().map(|mount| mount.id).collect();
    assert!(parsed.children.iter().all(|child| ids.contains(&child.parent)));
});
