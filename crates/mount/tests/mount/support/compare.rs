//! The same operations in a filesystem in memory and in tmpfs.

use std::cell::Cell;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use micabox_testing::mounts::Mount;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{Mode, OFlags, mkdir, open};

use super::operation::{Operation, apply, operation};
use super::{Memory, tree};

/// Sequences of operations for each kind of cache, and operations in each.
const SEQUENCES: u32 = 60;
const OPERATIONS: usize = 150;

fn directory(below: &Path, name: &str) -> OwnedFd {
    let path = below.join(name);
    mkdir(&path, Mode::RWXU).unwrap();
    open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

/// Does the same in both, again and again; `what` is the first, which knows of holes or does not.
pub fn compare(memory: &Memory, what: &str, knows_holes: bool) {
    let tmpfs = Mount::tmpfs("mode=755,size=256m");
    let number = Cell::new(0);
    let config = Config {
        cases: SEQUENCES,
        failure_persistence: None,
        ..Config::default()
    };
    let operations = proptest::collection::vec(operation(), 1..OPERATIONS);
    let run = TestRunner::new(config).run(&operations, |operations| {
        number.set(number.get() + 1);
        let name = number.get().to_string();
        let ours = directory(memory.path(), &name);
        let kernels = directory(tmpfs.path(), &name);
        for (at, operation) in operations.iter().enumerate() {
            // tmpfs takes what was allocated twice for data, which it is not.
            let is_allocated = operations[..at].iter().any(Operation::allocates);
            let has_holes = knows_holes && !is_allocated;
            if !has_holes && matches!(operation, Operation::Seek(..)) {
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
    run.unwrap_or_else(|error| panic!("{what}: {error}"));
    memory.wait_until_empty();
}
