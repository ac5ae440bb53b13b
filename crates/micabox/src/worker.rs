//! The kinds of processes that this program executes itself as: workers, and owners of sandboxes.

use micabox_holders::own_process;
use micabox_jail::Kind;

/// All kinds but those of [`micabox_parsers::KINDS`].
const WORKERS: &[Kind] = &[
    #[cfg(target_arch = "x86_64")]
    micabox_vmm::WORKER,
    micabox_image::WORKER,
    micabox_image::convert::CHECKER,
    micabox_lazy::INFLATER,
    micabox_share::KIND,
    micabox_mount::LOADER,
    micabox_vmm::NEEDS,
    micabox_vmm::QEMU_WORKER,
    micabox_vmm::HOST_WORKER,
    micabox_start::KIND,
    micabox_trees::KIND,
    micabox_trees::LAYER_KIND,
    Kind::parser::<micabox_trees::Serve>(),
    micabox_trees::lowers::KIND,
    micabox_holders::KIND,
    micabox_disks::KIND,
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
    micabox_start::log_with(subscribe);
    run_if_worker();
}

/// From now on, forks the processes of containers and of their images instead of executing this program for
/// each ([`Builder::create`](crate::Builder::create) with the host backend), which saves some milliseconds.
/// Must be called while the process has one thread, and has no effect otherwise; it keeps a small process for
/// as long as this one lives. For a program that calls [`run_if_worker`].
pub fn fork_processes() {
    // Without one, processes are executed.
    let _ = micabox_jail::start_zygote(&worker_kinds(), &own_process::KEPT);
}

/// What this program can be started as, for `micabox_jail::run_if_worker_before_main`.
pub fn worker_kinds() -> Vec<Kind> {
    WORKERS
        .iter()
        .chain(micabox_parsers::KINDS)
        .copied()
        .collect()
}
