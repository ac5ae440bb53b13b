//! The kinds of processes that this program executes itself as: workers, and owners of sandboxes.

use std::sync::OnceLock;

use micabox_jail::Kind;

use crate::jailed;

/// Starts the log of an owner, with the filter that its creator requested.
static SUBSCRIBE: OnceLock<fn(&str)> = OnceLock::new();

/// All kinds but those of [`jailed`].
const WORKERS: &[Kind] = &[
    #[cfg(target_arch = "x86_64")]
    micabox_vmm::WORKER,
    micabox_image::WORKER,
    micabox_image::convert::CHECKER,
    micabox_lazy::INFLATER,
    micabox_share::KIND,
    micabox_mount::LOADER,
    micabox_vmm::QEMU_WORKER,
    micabox_vmm::HOST_WORKER,
    crate::owner::KIND,
    crate::mounted::KIND,
    crate::mounted::LAYER_KIND,
    crate::lowers::KIND,
    crate::layers::KIND,
];

/// Becomes a worker or an owner if this process was started as one, and does not return then.
/// Owners, machines and parsers of foreign bytes are processes of this program if it calls this
/// before anything else; otherwise of the `mica` beside it, on PATH or in `MICABOX_WORKER`.
pub fn run_if_worker() {
    micabox_jail::run_if_worker(&worker_kinds());
}

/// As [`run_if_worker`]. An owner whose creator requested a log ([`Builder::owner_log`]) calls
/// `subscribe` with the filter before anything else; the log belongs on its stderr.
///
/// [`Builder::owner_log`]: crate::Builder::owner_log
pub fn run_if_worker_with(subscribe: fn(&str)) {
    let _ = SUBSCRIBE.set(subscribe);
    run_if_worker();
}

/// Starts this owner's log, if the program can.
pub(crate) fn subscribe(filter: &str) {
    if let Some(subscribe) = SUBSCRIBE.get() {
        subscribe(filter);
    }
}

/// What this program can be started as, for `micabox_jail::run_if_worker_before_main`.
#[doc(hidden)]
pub fn worker_kinds() -> Vec<Kind> {
    WORKERS.iter().chain(jailed::KINDS).copied().collect()
}
