//! Root's switch for FUSE over io_uring.

use std::fs;

use super::Memory;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Mounts a filesystem while the kernel offers io_uring; none if it has no such switch (Linux 6.14).
pub fn offering_queues(mount: impl FnOnce() -> Memory) -> Option<Memory> {
    let before = fs::read(SWITCH).ok()?;
    fs::write(SWITCH, "Y").unwrap();
    let memory = mount();
    // Answered once both sides have agreed.
    fs::metadata(memory.path()).unwrap();
    fs::write(SWITCH, before).unwrap();
    Some(memory)
}
