//! Root's switch for FUSE over io_uring.

use std::fs::{self, File};

use micabox_mount::Cache;

use super::Memory;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Mounts a filesystem whose requests come over io_uring; none if the kernel has no such switch (Linux
/// 6.14).
pub fn mount_with_queues(bytes: u64, inodes: u64, cache: Cache) -> Option<Memory> {
    // The switch is the whole machine's: one test at a time turns it on, and puts back what was there.
    let switch = File::open(SWITCH).ok()?;
    switch.lock().unwrap();
    let before = fs::read(SWITCH).unwrap();
    fs::write(SWITCH, "Y").unwrap();
    let memory = Memory::mount_with_queues(bytes, inodes, cache);
    // Answered once both sides have agreed.
    fs::metadata(memory.path()).unwrap();
    fs::write(SWITCH, before).unwrap();
    Some(memory)
}
