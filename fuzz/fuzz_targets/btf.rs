//! Any bytes as a kernel's types, and as those of a module of it: the reader neither panics nor runs for ever, and what it does
//! not understand is refused.
//!
//! `cargo +nightly fuzz run btf fuzz/corpus/btf fuzz/seeds/btf`; one input is the length of the kernel's part (four bytes,
//! little-endian), that part, and the module's. The seeds are the small kernels of the unit tests, with FUSE built in and as a
//! module: a real kernel's types are megabytes.

#![no_main]

use fuse_detector::kernel::unfit_types;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((length, rest)) = input.split_first_chunk() else { return };
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (kernel, module) = rest.split_at(length.min(rest.len()));
    let Ok(unfit) = unfit_types(kernel, (!module.is_empty()).then_some(module)) else { return };
    assert!(!unfit.is_empty() || input.len() > 256, "so few bytes can't describe all that is needed");
});
