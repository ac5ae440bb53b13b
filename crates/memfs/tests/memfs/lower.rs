//! A filesystem over a tree, sound or damaged.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use micabox_file::Segment;
use micabox_memfs::{
    Change, Errno, FileKind, Filesystem, New, ROOT, RenameMode, Seek, SetMode, Usage,
};

use crate::support::{LIMITS, Tree};

const DIRECTORY: FileKind = FileKind::Directory;
const FILE: FileKind = FileKind::File;

fn names(files: &Filesystem, directory: u64) -> Result<BTreeSet<String>, Errno> {
    let mut names = BTreeSet::new();
    files.list(directory, 0, |entry, hold| {
        if hold.is_some() {
            names.insert(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        true
    })?;
    Ok(names)
}

fn all(files: &Filesystem, file: u64) -> Result<Vec<u8>, Errno> {
    files.read(file, 0, u64::MAX, |pieces| pieces.concat())
}

fn inodes(files: &Filesystem) -> u64 {
    files.usage().inodes
}

#[test]
fn only_what_is_changed_takes_room() {
    let mut tree = Tree::new();
    tree.name(7, "d", 8, DIRECTORY)
        .name(8, "large", 9, FILE)
        .fill(9, vec![b'x'; 10 << 20]);
    tree.file(9).xattrs = vec![(b"user.a".to_vec(), b"1234".to_vec())];
    let files = tree.mount();
    let directory = files.look_up(ROOT, b"d").unwrap().number;
    let file = files.look_up(directory, b"large").unwrap();
    assert_eq!((file.size, file.blocks), (10 << 20, 20 << 10));
    assert_eq!(all(&files, file.number).unwrap().len(), 10 << 20);
    assert_eq!((inodes(&files), files.usage().bytes), (0, 0));

    let file = file.number;
    let mode = Some(0o600);
    let change = Change {
        mode,
        ..Change::default()
    };
    files.set(file, &change).unwrap();
    assert_eq!((inodes(&files), files.usage().bytes), (1, 10));
    files.write(file, 5 << 20, b"0123456789").unwrap();
    assert_eq!(files.usage().bytes, 10 + 4096);
    files.punch(file, 0, 2 << 20).unwrap();
    assert_eq!(files.usage().bytes, 10 + 4096);
    assert_eq!(files.seek(file, 0, Seek::Data), Ok(2 << 20));
    // A hole with something on both sides is one more part to remember.
    files.punch(file, 3 << 20, 100).unwrap();
    assert_eq!(files.usage().bytes, 10 + 4096 + 64);
    let bytes = all(&files, file).unwrap();
    assert!(bytes[..2 << 20].iter().all(|&byte| byte == 0));
    assert_eq!(
        &bytes[(3 << 20) - 1..][..102],
        [b"x", &[0; 100][..], b"x"].concat()
    );
    assert_eq!(&bytes[(5 << 20) - 1..][..12], b"x0123456789x");
    let size = Some(4 << 20);
    let change = Change {
        size,
        ..Change::default()
    };
    files.set(file, &change).unwrap();
    assert_eq!(files.usage().bytes, 10 + 64);
    files.remove_xattr(file, b"user.a").unwrap();
    files.unlink(directory, b"large").unwrap();
    files.forget(file, 1);
    // The directory, which has lost a name.
    assert_eq!(
        files.usage(),
        Usage {
            bytes: 0,
            inodes: 1
        }
    );
    // Also once the directory was forgotten.
    files.forget(directory, 1);
    let directory = files.look_up(ROOT, b"d").unwrap().number;
    assert_eq!(files.look_up(directory, b"large"), Err(Errno::NOENT));
}

#[test]
fn numbers_stay_and_inodes_that_are_not_changed_go() {
    let mut tree = Tree::new();
    tree.name(7, "d", 8, DIRECTORY)
        .name(8, "one", 9, FILE)
        .name(8, "two", 9, FILE);
    let files = tree.mount();
    let directory = files.look_up(ROOT, b"d").unwrap().number;
    let one = files.look_up(directory, b"one").unwrap();
    let two = files.look_up(directory, b"two").unwrap();
    assert_eq!((one, one.links), (two, 2));
    // A directory stays while what was found in it does.
    files.forget(directory, 1);
    assert!(files.stat(directory).is_ok());
    files.forget(one.number, 2);
    for number in [one.number, directory] {
        assert_eq!(files.stat(number), Err(Errno::STALE));
    }
    let again = files.look_up(ROOT, b"d").unwrap().number;
    assert_eq!(again, directory);
    assert_eq!(files.look_up(directory, b"two").unwrap(), one);

    // One that was changed stays, also where its other name leads.
    files.write(one.number, 0, b"changed").unwrap();
    files.forget(one.number, 1);
    files.forget(directory, 1);
    files.look_up(ROOT, b"d").unwrap();
    let one = files.look_up(directory, b"one").unwrap();
    assert_eq!((one.size, one.number), (7, two.number));
    files.unlink(directory, b"one").unwrap();
    assert_eq!(files.stat(one.number).unwrap().links, 1);
    assert_eq!(all(&files, one.number).unwrap(), b"changed");
    files.unlink(directory, b"two").unwrap();
    files.forget(one.number, 1);
    assert_eq!(
        files.usage(),
        Usage {
            bytes: 0,
            inodes: 1
        }
    );
}

#[test]
fn a_directory_moves_with_what_it_has_below() {
    let mut tree = Tree::new();
    tree.name(7, "a", 8, DIRECTORY)
        .name(7, "b", 10, DIRECTORY)
        .name(8, "d", 9, DIRECTORY)
        .name(9, "f", 11, FILE)
        .fill(11, b"contents".to_vec());
    let files = tree.mount();
    let [a, b] = [&b"a"[..], b"b"].map(|name| files.look_up(ROOT, name).unwrap().number);
    let rename =
        |old, name: &[u8], new, to: &[u8]| files.rename(old, name, new, to, RenameMode::Replace);
    let d = files.look_up(a, b"d").unwrap().number;
    assert_eq!(rename(ROOT, b"a", d, b"x"), Err(Errno::INVAL));
    rename(a, b"d", b, b"moved").unwrap();
    assert_eq!(rename(ROOT, b"b", d, b"x"), Err(Errno::INVAL));
    assert!(names(&files, a).unwrap().is_empty());
    files.forget(d, 1);
    let moved = files.look_up(b, b"moved").unwrap().number;
    assert_eq!(moved, d);
    let file = files.look_up(moved, b"f").unwrap().number;
    assert_eq!(all(&files, file).unwrap(), b"contents");
    // The three directories' names changed, and nothing in the one that was moved.
    let changes = files.changes().unwrap();
    assert!([ROOT, a, b, d].iter().all(|&number| changes.has(number)));
    assert!(!changes.has(file));
    assert_eq!(inodes(&files), 3);
    files.remove_directory(ROOT, b"a").unwrap();
    assert_eq!(files.stat(ROOT).unwrap().links, 3);
    // A name that was removed and made again has nothing below.
    let again = files
        .make(ROOT, b"a", &New::directory(0o755, 0, 0))
        .unwrap();
    assert!(names(&files, again.number).unwrap().is_empty());
    assert_eq!(files.below(again.number), None);
}

#[test]
fn what_is_removed_needs_no_room() {
    let mut tree = Tree::new();
    tree.name(7, "d", 8, DIRECTORY)
        .name(8, "one", 9, FILE)
        .name(7, "two", 9, FILE)
        .name(7, "three", 10, FILE);
    let limits = micabox_memfs::Limits {
        bytes: 0,
        inodes: 0,
    };
    let files = Filesystem::over(limits, Arc::new(tree)).unwrap();
    let directory = files.look_up(ROOT, b"d").unwrap().number;
    let three = files.look_up(ROOT, b"three").unwrap().number;
    assert_eq!(files.set(three, &Change::default()), Err(Errno::NOSPC));
    let set = files.set_xattr(three, b"user.a", b"", SetMode::Any, false);
    assert_eq!(set, Err(Errno::NOSPC));
    assert_eq!(
        files.make(ROOT, b"new", &New::file(0, 0, 0)),
        Err(Errno::NOSPC)
    );
    files.unlink(directory, b"one").unwrap();
    files.unlink(ROOT, b"two").unwrap();
    files.unlink(ROOT, b"three").unwrap();
    files.remove_directory(ROOT, b"d").unwrap();
    assert!(names(&files, ROOT).unwrap().is_empty());
    // Open files and directories stay.
    assert_eq!(files.stat(three).unwrap().links, 0);
    files.forget(three, 1);
    files.forget(directory, 1);
    assert_eq!(
        files.usage(),
        Usage {
            bytes: 0,
            inodes: 1
        }
    );
}

#[test]
fn other_names_of_a_changed_file_are_found() {
    let mut tree = Tree::new();
    tree.name(7, "a", 8, DIRECTORY)
        .name(8, "b", 9, DIRECTORY)
        .name(9, "one", 12, FILE)
        .name(7, "c", 10, DIRECTORY)
        .name(10, "two", 12, FILE)
        .name(7, "d", 11, DIRECTORY);
    let files = tree.mount();
    let mut numbers = Vec::from([ROOT]);
    for name in [&b"a"[..], b"b", b"one"] {
        let stat = files.look_up(*numbers.last().unwrap(), name).unwrap();
        numbers.push(stat.number);
    }
    files.write(numbers[3], 0, b"x").unwrap();
    let changes = files.changes().unwrap();
    assert!(numbers.iter().all(|&number| changes.has(number)));
    let other = |name: &[u8]| files.look_up(ROOT, name).unwrap().number;
    assert!(changes.has(other(b"c")) && !changes.has(other(b"d")));
}

#[test]
fn a_damaged_tree_gives_errors() {
    let over = |damage: &dyn Fn(&mut Tree)| {
        let mut tree = Tree::new();
        tree.name(7, "d", 8, DIRECTORY)
            .name(8, "e", 9, DIRECTORY)
            .name(8, "f", 10, FILE)
            .name(8, "l", 11, FileKind::Symlink)
            .fill(10, vec![1; 10_000]);
        tree.file(11).target = b"f".to_vec();
        damage(&mut tree);
        let files = tree.mount();
        let directory = files.look_up(ROOT, b"d").map(|stat| stat.number);
        (files, directory)
    };
    // Directories that can't be listed, and so not be changed.
    let bad_names: [&str; 7] = ["", ".", "..", "a/b", "a\0b", "e", &"n".repeat(256)];
    for name in bad_names {
        let (files, directory) = over(&|tree| _ = tree.name(8, name, 20, FILE));
        let directory = directory.unwrap();
        assert_eq!(names(&files, directory), Err(Errno::IO), "{name:?}");
        assert_eq!(files.look_up(directory, b"f"), Err(Errno::IO));
        let new = New::file(0o644, 0, 0);
        assert_eq!(files.make(directory, b"n", &new), Err(Errno::IO));
        assert_eq!(files.remove_directory(ROOT, b"d"), Err(Errno::IO));
    }
    let (files, directory) = over(&|tree| _ = tree.name(8, "again", 9, DIRECTORY));
    assert_eq!(names(&files, directory.unwrap()), Err(Errno::IO));

    // Names that lead nowhere or around; the others can be used.
    let bad: [(u64, FileKind); 6] = [
        (7, DIRECTORY),
        (8, DIRECTORY),
        (10, DIRECTORY),
        (99, FILE),
        (u64::MAX >> 2, FILE),
        (9, FILE),
    ];
    for (number, kind) in bad {
        let (files, directory) = over(&|tree| {
            let entry = (b"bad"[..].into(), number, kind);
            tree.file(8).entries.push(entry);
        });
        let directory = directory.unwrap();
        let found = files.look_up(directory, b"bad");
        assert_eq!(found, Err(Errno::IO), "{number} {kind:?}");
        assert!(files.unlink(directory, b"bad").is_err());
        let moved = files.rename(directory, b"bad", ROOT, b"good", RenameMode::Replace);
        assert!(moved.is_err());
        files.look_up(directory, b"f").unwrap();
        assert_eq!(names(&files, directory).unwrap().len(), 4);
    }
    // Two directories in each other, and one below two.
    let (files, directory) = over(&|tree| {
        tree.file(9).entries.push((b"up"[..].into(), 8, DIRECTORY));
        tree.file(7).entries.push((b"e"[..].into(), 9, DIRECTORY));
    });
    let inner = files.look_up(directory.unwrap(), b"e").unwrap().number;
    assert_eq!(files.look_up(inner, b"up"), Err(Errno::IO));
    assert_eq!(files.look_up(ROOT, b"e"), Err(Errno::IO));
    files.set(inner, &Change::default()).unwrap();
    assert!(files.changes().unwrap().has(inner));

    // Files whose attributes are wrong.
    let wrong: [&dyn Fn(&mut Tree); 5] = [
        &|tree| tree.file(10).stat.number = 11,
        &|tree| tree.file(10).stat.size = u64::MAX,
        &|tree| tree.file(10).stat.kind = FileKind::Fifo,
        &|tree| tree.file(10).xattrs = vec![(Vec::new(), Vec::new())],
        &|tree| tree.file(10).xattrs = vec![(b"user.a".to_vec(), vec![0; 1 << 17])],
    ];
    for damage in wrong {
        let (files, directory) = over(damage);
        assert_eq!(files.look_up(directory.unwrap(), b"f"), Err(Errno::IO));
    }
    for target in [vec![], vec![b'a'; 5000], b"a\0b".to_vec()] {
        let (files, directory) = over(&|tree| tree.file(11).target.clone_from(&target));
        assert_eq!(files.look_up(directory.unwrap(), b"l"), Err(Errno::IO));
    }
    // A size that lies, and segments that do.
    let (files, directory) = over(&|tree| {
        let file = tree.file(10);
        file.stat.size = 20_000;
        let segment = |offset, length| Segment { offset, length };
        file.segments = vec![segment(u64::MAX, 5), segment(5000, u64::MAX), segment(0, 0)];
    });
    let file = files.look_up(directory.unwrap(), b"f").unwrap().number;
    assert_eq!(all(&files, file), Err(Errno::IO));
    assert_eq!(files.write(file, 19_000, b"x"), Err(Errno::IO));
    assert_eq!(files.seek(file, 0, Seek::Data), Ok(5000));
    assert_eq!(files.seek(file, 5000, Seek::Hole), Ok(20_000));
    // Two pages are there before one that is not.
    assert_eq!(files.allocate(file, 0, 20_000, false), Err(Errno::IO));
    assert_eq!(files.write(file, 0, &[2; 8192]), Ok(8192));
    assert_eq!(files.usage().bytes, 2 * 4096);
    // Links that lie: names that are left lead to what there was, or nowhere.
    let (files, directory) = over(&|tree| {
        tree.name(8, "g", 10, FILE).file(10).stat.links = 1;
    });
    let directory = directory.unwrap();
    for name in [&b"f"[..], b"g"] {
        let file = files.look_up(directory, name).unwrap().number;
        files.write(file, 0, b"x").unwrap();
        files.unlink(directory, name).unwrap();
        files.forget(file, 1);
    }
    assert_eq!(
        files.usage(),
        Usage {
            bytes: 0,
            inodes: 1
        }
    );
    assert_eq!(files.limits().inodes, LIMITS.inodes);
}

#[test]
fn inodes_that_come_and_go_side_by_side_lose_no_change() {
    let mut tree = Tree::new();
    for number in 0..4 {
        tree.name(7, &format!("d{number}"), 10 + number, DIRECTORY);
    }
    for number in 0..40 {
        tree.name(10 + number % 4, &format!("f{number}"), 20 + number, FILE)
            .fill(20 + number, vec![b'.'; 40]);
    }
    let limits = micabox_memfs::Limits {
        bytes: 1 << 20,
        inodes: 1000,
    };
    let files = Filesystem::over(limits, Arc::new(tree)).unwrap();
    // A directory may be in another.
    let hold = |number: usize| {
        let name = format!("d{number}");
        let stat = files.look_up(ROOT, name.as_bytes());
        stat.map(|stat| stat.number)
    };
    // What each worker has written to.
    let written: [Mutex<BTreeSet<String>>; 4] = Default::default();
    std::thread::scope(|scope| {
        for (worker, written) in written.iter().enumerate() {
            let (files, hold) = (&files, &hold);
            scope.spawn(move || {
                for turn in 0..2000_usize {
                    let number = (turn * 13 + worker) % 40;
                    let name = format!("f{number}");
                    let held = [(worker + turn) % 4, (worker * 3 + turn * 7) % 4].map(hold);
                    if let [Ok(from), Ok(to)] = held {
                        if let Ok(stat) = files.look_up(from, name.as_bytes()) {
                            files.write(stat.number, worker as u64, b"x").unwrap();
                            files.forget(stat.number, 1);
                            written.lock().unwrap().insert(name.clone());
                        }
                        let name = name.as_bytes();
                        let _ = files.rename(from, name, to, name, RenameMode::NoReplace);
                        let _ = files.rename(ROOT, b"d0", to, b"d0", RenameMode::NoReplace);
                        let _ = files.rename(to, b"d0", ROOT, b"d0", RenameMode::NoReplace);
                        names(files, to).unwrap();
                    }
                    for number in held.into_iter().flatten() {
                        files.forget(number, 1);
                    }
                }
            });
        }
    });
    let mut left = 0;
    for directory in 0..4 {
        let directory = hold(directory).unwrap();
        for name in names(&files, directory).unwrap() {
            let file = files.look_up(directory, name.as_bytes()).unwrap();
            let bytes = all(&files, file.number).unwrap();
            let mut expected = vec![b'.'; 40];
            for (worker, written) in written.iter().enumerate() {
                if written.lock().unwrap().contains(&name) {
                    expected[worker] = b'x';
                }
            }
            assert_eq!(bytes, expected, "{name}");
            left += 1;
        }
    }
    assert_eq!(left, 40);
    assert!(files.usage().inodes > 30, "{:?}", files.usage());
}
