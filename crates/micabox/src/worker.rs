//! What this program starts itself once more as: workers, and owners of sandboxes.

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

/// Becomes a worker if this process was started as one, and then does not come back. Machines
/// and parsers of what is foreign are processes of a program that calls this first of all;
/// for others, of the `mica` beside them, on PATH or in `MICABOX_WORKER`.
pub fn run_if_worker() {
    let kinds: Vec<Kind> = WORKERS.iter().chain(jailed::KINDS).copied().collect();
    micabox_jail::run_if_worker(&kinds);
}
