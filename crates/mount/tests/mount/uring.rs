//! A filesystem in memory whose requests come over io_uring, beside the kernel's tmpfs.

use std::fs;

use micabox_mount::Cache;
use rustix::fs::Mode;

use crate::support::compare::compare;
use crate::support::switch::mount_with_queues;

/// Returns whether this process has a queue of io_uring.
fn is_used() -> bool {
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let mut targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets.any(|target| target.to_str() == Some("anon_inode:[io_uring]"))
}

#[test]
#[ignore = "needs root: mounts filesystems, and switches on FUSE over io_uring"]
fn random_operations_over_io_uring_answer_as_on_tmpfs_and_leave_the_same_tree() {
    rustix::process::umask(Mode::from_raw_mode(0o027));
    for cache in [Cache::None, Cache::Always] {
        let memory = mount_with_queues(256 << 20, 100_000, cache);
        let Some(memory) = memory else {
            eprintln!("not run: this kernel has no FUSE over io_uring");
            return;
        };
        compare(&memory, &format!("{cache:?} over io_uring"), false);
        assert!(is_used(), "the kernel offered io_uring, which was not used");
    }
}
