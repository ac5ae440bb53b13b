//! Contents of files, beside a plain array of bytes.

use micabox_file::Segment;
use micabox_memfs::{Change, Errno, FileKind, Filesystem, Limits, New, ROOT, Seek, Usage};
use proptest::prelude::*;

use crate::support::{LIMITS, Tree};

fn filesystem(limits: Limits) -> (Filesystem, u64) {
    let files = Filesystem::new(limits, 0o755, 0, 0);
    let file = files.make(ROOT, b"file", &New::file(0o644, 0, 0)).unwrap();
    (files, file.number)
}

fn all(files: &Filesystem, file: u64) -> Vec<u8> {
    files
        .read(file, 0, u64::MAX, |pieces| pieces.concat())
        .unwrap()
}

fn truncate(files: &Filesystem, file: u64, size: u64) {
    let size = Some(size);
    files
        .set(
            file,
            &Change {
                size,
                ..Change::default()
            },
        )
        .unwrap();
}

#[derive(Clone, Debug)]
enum Operation {
    Write(u64, usize),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Allocate(u64, u64, bool),
    Copy(u64, u64, u64),
}

/// Places near the boundaries of pages and chunks, and anywhere.
fn place() -> impl Strategy<Value = u64> {
    let edges = [
        0,
        1,
        4095,
        4096,
        8192,
        65_535,
        65_536,
        65_537,
        1 << 17,
        (1 << 20) - 1,
        1 << 20,
        1 << 21,
    ];
    prop_oneof![prop::sample::select(edges.to_vec()), 0_u64..3_000_000]
}

fn length() -> impl Strategy<Value = u64> {
    place().prop_map(|length| length + 1)
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => (place(), 0_usize..200_000).prop_map(|(at, length)| Operation::Write(at, length)),
        2 => place().prop_map(Operation::Truncate),
        2 => (place(), length()).prop_map(|(at, length)| Operation::Punch(at, length)),
        1 => (place(), length(), any::<bool>()).prop_map(|(at, n, keep)| Operation::Zero(at, n, keep)),
        1 => (place(), length(), any::<bool>()).prop_map(|(at, n, keep)| Operation::Allocate(at, n, keep)),
        1 => (place(), place(), place()).prop_map(|(at, to, n)| Operation::Copy(at, to, n)),
    ]
}

/// The same on an array.
fn apply(model: &mut Vec<u8>, operation: &Operation) {
    let reach = |model: &mut Vec<u8>, end: u64| model.resize(model.len().max(end as usize), 0);
    match *operation {
        Operation::Write(at, length) => {
            if length > 0 {
                reach(model, at + length as u64);
                model[at as usize..][..length].copy_from_slice(&bytes(length));
            }
        }
        Operation::Truncate(size) => model.resize(size as usize, 0),
        Operation::Punch(at, length) | Operation::Zero(at, length, true) => {
            let end = model.len().min((at + length) as usize);
            if let Some(range) = model.get_mut(at as usize..end) {
                range.fill(0);
            }
        }
        Operation::Zero(at, length, false) => {
            reach(model, at + length);
            model[at as usize..][..length as usize].fill(0);
        }
        Operation::Allocate(at, length, false) => reach(model, at + length),
        Operation::Allocate(..) => {}
        Operation::Copy(at, to, length) => {
            let end = model.len().min((at + length) as usize);
            let source = model.get(at as usize..end).unwrap_or_default().to_vec();
            if !source.is_empty() {
                reach(model, to + source.len() as u64);
                model[to as usize..][..source.len()].copy_from_slice(&source);
            }
        }
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 + 1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_has_what_was_written_and_says_where(operations in prop::collection::vec(operation(), 1..25)) {
        let (files, file) = filesystem(LIMITS);
        change(&files, file, Vec::new(), &operations)?;
        files.unlink(ROOT, b"file").unwrap();
        files.forget(file, 1);
        prop_assert_eq!(files.usage(), NOTHING);
    }

    #[test]
    fn a_file_over_a_lower_one_has_what_that_has_and_what_was_written(
        parts in prop::collection::vec((place(), length()), 0..6),
        operations in prop::collection::vec(operation(), 1..25),
    ) {
        let mut model = vec![0; 1_500_000];
        let mut segments = Vec::new();
        for (offset, length) in parts {
            let end = model.len().min((offset + length) as usize);
            if let Some(part) = model.get_mut(offset as usize..end) {
                part.fill(0xee);
                segments.push(Segment { offset, length: part.len() as u64 });
            }
        }
        let mut tree = Tree::new();
        tree.name(7, "file", 9, FileKind::File).fill(9, model.clone());
        tree.file(9).segments = segments;
        let files = tree.mount();
        let file = files.look_up(ROOT, b"file").unwrap().number;
        change(&files, file, model, &operations)?;
        files.unlink(ROOT, b"file").unwrap();
        files.forget(file, 1);
        // The root, which has lost a name.
        prop_assert_eq!(files.usage(), Usage { bytes: 0, inodes: 1 });
    }
}

const NOTHING: Usage = Usage {
    bytes: 0,
    inodes: 0,
};

/// Changes a file and the array that has its contents; they stay the same.
fn change(
    files: &Filesystem,
    file: u64,
    mut model: Vec<u8>,
    operations: &[Operation],
) -> Result<(), TestCaseError> {
    let is_over_lower = files.lower().is_some();
    for operation in operations {
        // copy_file_range(2) refuses ranges that overlap before it asks.
        if let Operation::Copy(at, to, length) = *operation
            && at < to + length
            && to < at + length
        {
            continue;
        }
        match *operation {
            Operation::Write(at, length) => {
                prop_assert_eq!(files.write(file, at, &bytes(length)).unwrap(), length);
            }
            Operation::Truncate(size) => truncate(files, file, size),
            Operation::Punch(at, length) => files.punch(file, at, length).unwrap(),
            Operation::Zero(at, length, keep) => files.zero(file, at, length, keep).unwrap(),
            Operation::Allocate(at, length, keep) => {
                files.allocate(file, at, length, keep).unwrap();
            }
            Operation::Copy(at, to, length) => {
                files.copy((file, at), (file, to), length).unwrap();
            }
        }
        apply(&mut model, operation);
        let stat = files.stat(file).unwrap();
        prop_assert_eq!(stat.size, model.len() as u64);
        if !is_over_lower {
            prop_assert_eq!(files.usage().bytes, stat.blocks * 512);
        }
    }
    prop_assert!(
        all(files, file) == model,
        "contents differ after {:?}",
        operations
    );
    // What is said to be a hole is zeros, and data and holes take turns up to the end.
    let (mut at, size) = (0, model.len() as u64);
    while at < size {
        let data = files.seek(file, at, Seek::Data).unwrap_or(size);
        prop_assert!(
            data >= at
                && model[at as usize..data as usize]
                    .iter()
                    .all(|&byte| byte == 0)
        );
        if data == size {
            break;
        }
        at = files.seek(file, data, Seek::Hole).unwrap();
        prop_assert!(at > data && at <= size);
    }
    Ok(())
}

#[test]
fn a_full_filesystem_takes_what_fits_and_loses_nothing() {
    let limits = Limits {
        bytes: 3 * 4096,
        inodes: 2,
    };
    let (files, file) = filesystem(limits);
    assert_eq!(files.write(file, 4000, &bytes(20_000)), Ok(3 * 4096 - 4000));
    assert_eq!(files.write(file, 20_000, b"x"), Err(Errno::NOSPC));
    // What is there can be overwritten.
    assert_eq!(files.write(file, 0, &bytes(100)), Ok(100));
    let stat = files.stat(file).unwrap();
    assert_eq!((stat.size, stat.blocks), (3 * 4096, 3 * 8));
    // A cache that writes back gets all or nothing.
    assert_eq!(
        files.write_back(file, 12_000, &bytes(500)),
        Err(Errno::NOSPC)
    );
    assert_eq!(files.stat(file).unwrap().size, 3 * 4096);
    assert_eq!(files.allocate(file, 0, 1 << 60, true), Err(Errno::NOSPC));
    files.punch(file, 0, 4096).unwrap();
    files.write_back(file, 1 << 40, b"y").unwrap();
    assert_eq!(files.seek(file, 3 * 4096, Seek::Data), Ok(1 << 40));

    let other = files
        .make(ROOT, b"other", &New::file(0o600, 0, 0))
        .unwrap()
        .number;
    let third = files.make(ROOT, b"third", &New::file(0o600, 0, 0));
    assert_eq!(third, Err(Errno::NOSPC));
    // Another name takes an inode's room, as on tmpfs.
    assert_eq!(files.link(other, ROOT, b"third"), Err(Errno::NOSPC));
    files.unlink(ROOT, b"other").unwrap();
    files.forget(other, 1);
    files.link(file, ROOT, b"third").unwrap();
}

#[test]
fn a_range_beyond_the_largest_file_is_refused() {
    let (files, file) = filesystem(LIMITS);
    let most = i64::MAX as u64;
    assert_eq!(files.write(file, most, b"xy"), Err(Errno::FBIG));
    assert_eq!(files.write(file, u64::MAX, b"x"), Err(Errno::FBIG));
    assert_eq!(files.punch(file, u64::MAX, 1), Err(Errno::FBIG));
    assert_eq!(files.allocate(file, most, 1, false), Err(Errno::FBIG));
    assert_eq!(files.punch(file, 0, 0), Err(Errno::INVAL));
    truncate(&files, file, most);
    assert_eq!(files.seek(file, 0, Seek::Data), Err(Errno::NXIO));
    assert_eq!(files.seek(file, 0, Seek::Hole), Ok(0));
    assert_eq!(files.seek(file, most, Seek::Hole), Err(Errno::NXIO));
    assert_eq!(files.usage().bytes, 0);
}
