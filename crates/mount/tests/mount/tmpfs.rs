//! A filesystem in memory beside the kernel's tmpfs.

use micabox_mount::Cache;
use rustix::fs::Mode;

use crate::support::Memory;
use crate::support::compare::compare;

#[test]
#[ignore = "needs root: mounts filesystems"]
fn random_operations_answer_as_on_tmpfs_and_leave_the_same_tree() {
    rustix::process::umask(Mode::from_raw_mode(0o027));
    for cache in [Cache::None, Cache::Auto, Cache::Always] {
        compare(
            &Memory::mount(256 << 20, 100_000, cache),
            &format!("{cache:?}"),
            true,
        );
    }
}
