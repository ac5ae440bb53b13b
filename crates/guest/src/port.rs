//! The channel's device: the virtio-serial port with the agent's name.

use std::fs;
use std::os::fd::OwnedFd;

use micabox_wire::{BootFailed, BootPart};
use rustix::fs::{Mode, OFlags};

use crate::announced::wait_for;
use crate::step::Step;

/// The name that the host gives the port.
const NAME: &str = "micabox.agent.0";

/// Opens the port. While the agent has it open, no other process can open it.
pub fn open() -> Result<OwnedFd, BootFailed> {
    // The names arrive in messages from the device, after its driver has started.
    let device = wait_for(find).ok_or_else(|| BootFailed {
        step: "find the channel to the host".to_owned(),
        target: format!("virtio-serial port {NAME}"),
        errno: 0,
        detail: "the machine has no such port".to_owned(),
        part: BootPart::Other,
    })?;
    let path = format!("/dev/{device}");
    rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .step("open the channel to the host", path)
}

fn find() -> Option<String> {
    for entry in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim_end() == NAME {
            return entry.file_name().into_string().ok();
        }
    }
    None
}
