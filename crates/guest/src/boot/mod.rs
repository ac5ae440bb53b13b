//! Sets the sandbox up from the machine's devices.

mod clock;
mod device;
mod device_mapper;
pub mod disk;
pub mod files;
mod process_one;
mod root;
pub mod setup;
mod share;
mod tree;
mod upper;

use std::fs;

use micabox_wire::{Boot, BootFailed};
use rustix::mount::MountAttrFlags;

use crate::identity;
use crate::kernel::{Disks, Kernel};
use crate::kernel_log::KernelLog;
use crate::mount;
use crate::sandbox::Sandbox;
use crate::step::Step;

pub use clock::Clock;
pub use upper::UPPER;

/// Mounts the kernel's filesystems that the agent itself needs. The initial RAM filesystem contains
/// only the agent.
pub fn mount_kernel_filesystems() -> Result<(), BootFailed> {
    for (kind, path) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(path).step("make the directory", path)?;
        mount::Filesystem::new(kind)
            .and_then(|filesystem| filesystem.mount(MountAttrFlags::empty()))
            .step("mount", path)
            .and_then(|mount| mount::attach(&mount, path).step("mount", path))?;
    }
    Ok(())
}

/// Sets the sandbox up that the host describes.
pub fn boot(
    boot: &Boot,
    kernel: Kernel,
    disks: &Disks,
    clock: &mut Clock,
) -> Result<Sandbox, BootFailed> {
    let mut log = KernelLog::from_now();
    assemble(boot, kernel, disks, clock).map_err(|mut failed| {
        let mut detail: Vec<String> = Vec::new();
        detail.extend(Some(failed.detail).filter(|detail| !detail.is_empty()));
        detail.extend(log.complaints());
        failed.detail = detail.join("\n");
        failed
    })
}

fn assemble(
    boot: &Boot,
    kernel: Kernel,
    disks: &Disks,
    clock: &mut Clock,
) -> Result<Sandbox, BootFailed> {
    let interface = identity::set_up(&boot.identity, kernel)?;
    clock.lap("machine");
    let overlay = root::mount(boot, kernel, disks, clock)?;
    let mut place = tree::build(&overlay, boot, kernel)?;
    clock.lap("kernel filesystems");
    let pids = process_one::start(boot.init, &place)?;
    clock.lap("process 1");
    setup::apply(&boot.setup, &mut place, disks)?;
    Ok(Sandbox {
        place,
        pids,
        hostname: boot.identity.hostname.clone(),
        interface,
    })
}
