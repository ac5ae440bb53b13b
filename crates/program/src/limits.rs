//! The limits on resources that this process was started with (`ulimit`).

use std::sync::Arc;

use rustix::process::{Resource, Signal, getrlimit, setrlimit};

/// Raises the limit on descriptors to this number, or as far as it may be raised.
pub fn raise_descriptor_limit(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.map_or(wanted, |most| most.min(wanted));
    if limit.current.is_some_and(|current| current < allowed) {
        limit.current = Some(allowed);
        // If that fails, fewer connections are possible.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Has a write beyond the caller's limit for files (`ulimit -f`) fail with its error, where the signal would end this
/// process without a word.
pub fn outlive_file_limit() {
    let signal = Signal::XFSZ.as_raw();
    let _ = signal_hook::flag::register(signal, Arc::default());
}
