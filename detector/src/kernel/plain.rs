//! The maps' keys and values as aya wants them: plain bytes.

use detector_common::layout::{CallTable, Layout};
use detector_common::maps::{Bucket, CallError, ConnectionState, DaemonState, RequestError, Served};

/// A value whose bytes are all there is to it. A wrapper, because neither the trait nor the types are this crate's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(super) struct Plain<T>(pub T);

macro_rules! plain {
    ($($type:ty),+) => {$(
        // SAFETY: `repr(C)`, fixed-width integers only, every bit pattern valid, no padding (the sizes are asserted next
        // to the definitions).
        unsafe impl aya::Pod for Plain<$type> {}
    )+};
}

plain!(Bucket, CallError, CallTable, ConnectionState, DaemonState, Layout, RequestError, Served);
