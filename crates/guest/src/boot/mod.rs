//! Sets the sandbox up from the machine's devices.

mod device;
mod device_mapper;
pub mod disk;
pub mod files;
mod group;
pub mod masks;
mod process_one;
mod root;
pub mod setup;
mod share;
mod step;
mod tree;
mod upper;

use std::fs;
use std::time::Duration;

use micabox_wire::{Boot, BootFailed, BootTimings, Phase};
use rustix::mount::MountAttrFlags;

use crate::exec::Sandbox;
use crate::identity;
use crate::kernel::{Disks, Kernel};
use crate::kernel_log::KernelLog;
use crate::machine;
use crate::mount;

pub use group::Group;
pub use step::Step;
pub use upper::UPPER;

/// How long a device that the host announced may take to appear.
const PATIENCE: Duration = Duration::from_secs(5);

/// Measures the phases of the set-up.
#[derive(Debug)]
pub struct Clock {
    last: u64,
    phases: Vec<Phase>,
}

impl Clock {
    /// Creates a clock whose first phase began at `uptime` microseconds.
    pub fn start(uptime: u64) -> Self {
        Self {
            last: uptime,
            phases: Vec::new(),
        }
    }

    /// Ends a phase.
    pub fn lap(&mut self, name: &str) {
        let now = machine::uptime_us();
        self.phases.push(Phase {
            name: name.to_owned(),
            micros: now.saturating_sub(self.last),
        });
        self.last = now;
    }

    /// Returns all phases.
    pub fn into_timings(self) -> BootTimings {
        BootTimings {
            phases: self.phases,
        }
    }
}

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

/// Calls `ask` repeatedly until it returns a value, for a few seconds at most.
pub fn wait_for<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = machine::uptime_us();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        let waited = machine::uptime_us().saturating_sub(start);
        if u128::from(waited) > PATIENCE.as_micros() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
