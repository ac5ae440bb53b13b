//! Where data is in a file that a program still writes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use micabox_mount::Cache;
use micabox_testing::shell;
use rustix::fs::{SeekFrom, seek};

use crate::support::Memory;
use crate::support::switch::mount_with_queues;

fn new(memory: &Memory, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options.open(memory.path().join(name)).unwrap()
}

/// Checks a filesystem while other threads have it read and write.
fn check(memory: &Memory) {
    let file = new(memory, "file");
    file.write_all_at(b"data", 1 << 20).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(&file, SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4));
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    file.write_all_at(b"more", 0).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(0));

    file.write_all_at(b"last", 3 << 20).unwrap();
    shell(
        memory.path(),
        "cp file copy; cmp file copy; tar -cSf - file | tar -xOf - | cmp - file",
    );

    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..4 {
            let is_over = &is_over;
            scope.spawn(move || {
                let name = format!("busy{number}");
                while !is_over.load(Ordering::Relaxed) {
                    let file = new(memory, &name);
                    file.write_all_at(&[7; 10_000], 50_000).unwrap();
                    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(49_152));
                    fs::remove_file(memory.path().join(&name)).unwrap();
                }
            });
        }
        for at in 0..200 {
            file.write_all_at(&[1; 5000], at * 8192).unwrap();
            assert_eq!(seek(&file, SeekFrom::Data(at * 8192)), Ok(at * 8192));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
#[ignore = "needs root: mounts filesystems"]
fn data_that_only_the_kernel_has_is_not_taken_for_a_hole() {
    for cache in [Cache::None, Cache::Auto, Cache::Always] {
        check(&Memory::mount(64 << 20, 1000, cache));
    }
}

#[test]
#[ignore = "needs root: mounts filesystems, and switches on FUSE over io_uring"]
fn over_io_uring_all_of_a_file_is_data() {
    // Linux 6.14.
    let Some(memory) = mount_with_queues(64 << 20, 1000, Cache::Always) else {
        eprintln!("not run: this kernel has no FUSE over io_uring");
        return;
    };
    let file = new(&memory, "file");
    file.write_all_at(b"data", 1 << 20).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok((1 << 20) + 4));
    shell(memory.path(), "cp file copy; cmp file copy");
}
