//! The kinds of processes that this program executes itself as: workers, and owners of sandboxes.

use micabox_jail::Kind;

use crate::jailed;

/// All kinds but those of [`jailed`].
const WORKERS: &[Kind] = &[
    #[cfg(target_arch = "x86_64")]
    micabox_vmm::WORKER,
    micabox_image::WORKER,
    micabox_vmm::QEMU_WORKER,
    crate::owner::KIND,
];

/// Becomes a worker or an owner if this process was started as one, and does not return then.
/// Owners, machines and parsers of foreign bytes are processes of this program if it calls this
/// before anything else; otherwise of the `mica` beside it, on PATH or in `MICABOX_WORKER`.
pub fn run_if_worker() {
    micabox_jail::run_if_worker(&worker_kinds());
}

/// What this program can be started as, for `micabox_jail::run_if_worker_before_main`.
#[doc(hidden)]
pub fn worker_kinds() -> Vec<Kind> {
    WORKERS.iter().chain(jailed::KINDS).copied().collect()
}
