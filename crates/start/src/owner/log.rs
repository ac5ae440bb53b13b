//! The log of an owner, which the program that is executed as one starts.

use std::sync::OnceLock;

/// Starts the log, with the filter that the sandbox's creator requested.
static SUBSCRIBE: OnceLock<fn(&str)> = OnceLock::new();

/// Sets what starts the log of this process, should it be an owner. Counts once.
pub fn log_with(subscribe: fn(&str)) {
    let _ = SUBSCRIBE.set(subscribe);
}

/// Starts this owner's log, if the program can.
pub(super) fn subscribe(filter: &str) {
    if let Some(subscribe) = SUBSCRIBE.get() {
        subscribe(filter);
    }
}
