//! A filesystem in memory beside the kernel's tmpfs.

mod support;

use std::cell::Cell;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use micabox_mount::Cache;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{Mode, OFlags, mkdir, open};
use support::operation::{Operation, apply, operation};
use support::{Memory, Tmpfs, tree};

/// Sequences of operations for each kind of cache, and operations in each.
const SEQUENCES: u32 = 60;
const OPERATIONS: usize = 150;

fn directory(below: &Path, name: &str) -> OwnedFd {
    let path = below.join(name);
    mkdir(&path, Mode::RWXU).unwrap();
    open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

#[test]
#[ignore = "needs root: mounts filesystems"]
fn random_operations_answer_as_on_tmpfs_and_leave_the_same_tree() {
    rustix::process::umask(Mode::from_raw_mode(0o027));
    let tmpfs = Tmpfs::mount();
    for cache in [Cache::None, Cache::Auto, Cache::Always] {
        let memory = Memory::mount(256 << 20, 100_000, cache);
        let number = Cell::new(0);
        let config = Config {
            cases: SEQUENCES,
            failure_persistence: None,
            ..Config::default()
        };
        let operations = proptest::collection::vec(operation(), 1..OPERATIONS);
        let run = TestRunner::new(config).run(&operations, |operations| {
            number.set(number.get() + 1);
            let name = format!("{cache:?}{}", number.get());
            let ours = directory(memory.path(), &name);
            let kernels = directory(tmpfs.path(), &name);
            for (at, operation) in operations.iter().enumerate() {
                // tmpfs takes what was allocated twice for data, which it is not.
                let is_allocated = operations[..at].iter().any(Operation::allocates);
                if is_allocated && matches!(operation, Operation::Seek(..)) {
                    continue;
                }
                let (answer, expected) = (apply(&ours, operation), apply(&kernels, operation));
                proptest::prop_assert_eq!(answer, expected, "{} of {:?}", at, &operations[..=at]);
            }
            proptest::prop_assert_eq!(tree::read(&ours), tree::read(&kernels));
            drop((ours, kernels));
            fs::remove_dir_all(memory.path().join(&name)).unwrap();
            fs::remove_dir_all(tmpfs.path().join(&name)).unwrap();
            Ok(())
        });
        run.unwrap_or_else(|error| panic!("{cache:?}: {error}"));
        memory.wait_until_empty();
    }
}
