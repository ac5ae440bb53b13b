//! Tests inodes without names; a crash can leave any number of them.

use std::fs;

use micabox_ext4::check::check;
use micabox_ext4::device::Memory;
use micabox_ext4::mkfs::{self, Journal};
use micabox_ext4::{Ext4, Options, Owner, ROOT};

/// Returns a disk with this many open files that had been deleted.
fn crashed(orphans: u32) -> Memory {
    // A group has 32,768 inodes.
    let size = (orphans as usize / 32_000 + 1) * (128 << 20);
    let mut device = Memory::new(size);
    let options = mkfs::Options {
        uuid: [1; 16],
        label: [0; 16],
        time: 1,
        inodes: Some(u64::from(orphans) + 64),
        journal: Journal::Default,
        reserved: 0,
    };
    mkfs::mkfs(&mut device, size as u64, &options).unwrap();
    let options = Options {
        inode_cache: 1 << 20,
        ..Options::default()
    };
    let mut filesystem = Ext4::open(device, options).unwrap();
    for _ in 0..orphans {
        let file = filesystem
            .create(ROOT, b"name", Owner::root(0o600))
            .unwrap();
        filesystem.hold(file).unwrap();
        filesystem.unlink(ROOT, b"name").unwrap();
    }
    filesystem.sync().unwrap();
    filesystem.abandon()
}

/// Returns the processor time of this thread in nanoseconds; other threads do not affect it.
fn spent() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Returns the time of the cleanup in nanoseconds.
fn clean_up(orphans: u32) -> u64 {
    let device = crashed(orphans);
    let before = spent();
    let filesystem = Ext4::open(device, Options::default()).unwrap();
    let needed = spent() - before;
    let device = filesystem.close().unwrap();
    assert_eq!(check(&device), []);
    needed
}

#[test]
fn a_hundred_thousand_orphans_cost_no_more_each_than_a_few() {
    // The least of some runs: what else the machine does costs this thread time too.
    let (mut few, mut many) = (u64::MAX, u64::MAX);
    for _ in 0..5 {
        few = few.min(clean_up(4_000));
        many = many.min(clean_up(100_000));
        // The number of orphans is 25 times as large.
        if many < few * 75 {
            return;
        }
    }
    panic!("{few} ns, {many} ns");
}
