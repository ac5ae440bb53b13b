//! What a guest is told, and until when: changes of the host outdate it, its own do not.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use micabox_testing::{PATIENCE, wait_until};

use crate::guest::{Guest, ROOT};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const MKDIR: u32 = 9;
const UNLINK: u32 = 10;
const RENAME: u32 = 12;
const DESTROY: u32 = 38;

/// Nanoseconds of a validity that is a version.
const VERSION: u32 = u32::MAX;

/// The slots of an entry, of a file's owner and mode, and of what changes with its contents, as the
/// guest's kernel computes them.
fn name_slot(directory: u64, name: &str) -> u16 {
    let hash = name.bytes().fold(directory, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ((hash ^ (hash >> 32)) % 4096) as u16
}

fn attributes_slot(node: u64) -> u16 {
    (node % 4096) as u16
}

fn contents_slot(node: u64) -> u16 {
    (!node % 4096) as u16
}

/// An answer about an entry (`fuse_entry_out`).
#[derive(Debug, PartialEq, Eq)]
struct Told {
    node: u64,
    /// The versions of the name and of the attributes; None if they are valid for a time.
    name: Option<u64>,
    attributes: Option<u64>,
}

fn received(answer: &[u8]) -> Told {
    let long = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
    Told {
        node: long(0),
        name: (word(32) == VERSION).then(|| long(16)),
        attributes: (word(36) == VERSION).then(|| long(24)),
    }
}

fn look_up(guest: &mut Guest, directory: u64, name: &str) -> Told {
    received(&guest.ask(LOOKUP, directory, &words(&[name])).unwrap())
}

fn words(names: &[&str]) -> Vec<u8> {
    names
        .iter()
        .flat_map(|name| [name.as_bytes(), &[0]].concat())
        .collect()
}

/// Returns the slots that have been outdated after `change`, as soon as `expected` are among them, or
/// all are.
fn outdated(guest: &mut Guest, expected: &[u16], change: impl FnOnce()) -> BTreeSet<u16> {
    guest.outdated.clear();
    change();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = guest.outdated.iter().flat_map(|(_, slots)| slots);
        let seen: BTreeSet<u16> = seen.copied().collect();
        let are_all = guest.outdated.iter().any(|(_, slots)| slots.is_empty());
        if are_all || expected.iter().all(|slot| seen.contains(slot)) {
            return seen;
        }
        assert!(Instant::now() < deadline, "{expected:?} of {seen:?}");
        assert_eq!(guest.receive(), Ok(None));
    }
}

/// Lets the server see all that has happened: a change of the root's mode is the last of it.
fn all_outdated(
    guest: &mut Guest,
    folder: &Path,
    change: impl FnOnce(&mut Guest),
) -> BTreeSet<u16> {
    guest.outdated.clear();
    change(guest);
    let before = std::mem::take(&mut guest.outdated);
    let mode = fs::metadata(folder).unwrap().permissions();
    let after = outdated(guest, &[attributes_slot(ROOT)], || {
        fs::set_permissions(folder, mode).unwrap();
    });
    let before = before.into_iter().flat_map(|(_, slots)| slots);
    before.chain(after).collect()
}

#[test]
fn what_the_host_changes_is_outdated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::create_dir(path.join("d")).unwrap();
    fs::write(path.join("d/file"), "old").unwrap();
    let mut guest = Guest::with_versions(path);
    let directory = look_up(&mut guest, ROOT, "d");
    let d = directory.node;
    let file = look_up(&mut guest, d, "file");
    let missing = look_up(&mut guest, d, "missing");
    for told in [&directory, &file, &missing] {
        assert!(told.name.is_some() && told.attributes.is_some(), "{told:?}");
    }
    assert_eq!(missing.node, 0);

    let is = contents_slot(file.node);
    outdated(&mut guest, &[is], || {
        fs::write(path.join("d/file"), "new").unwrap()
    });
    let again = look_up(&mut guest, d, "file");
    assert!(again.name > file.name, "a later version");
    let is = [name_slot(d, "missing"), contents_slot(d)];
    outdated(&mut guest, &is, || {
        fs::write(path.join("d/missing"), "").unwrap()
    });
    let is = [name_slot(d, "file"), name_slot(ROOT, "moved")];
    outdated(&mut guest, &is, || {
        fs::rename(path.join("d/file"), path.join("moved")).unwrap();
    });
    // The guest has it open, and does not know where it is.
    let attributes = guest.ask(GETATTR, file.node, &[0; 16]).unwrap();
    assert_ne!(attributes[8..12], VERSION.to_le_bytes());
    assert_eq!(look_up(&mut guest, ROOT, "moved").node, file.node);
    let attributes = guest.ask(GETATTR, file.node, &[0; 16]).unwrap();
    assert_eq!(attributes[8..12], VERSION.to_le_bytes());
    let is = [name_slot(ROOT, "moved")];
    outdated(&mut guest, &is, || {
        fs::remove_file(path.join("moved")).unwrap()
    });
    let is = [name_slot(ROOT, "d"), name_slot(ROOT, "e")];
    outdated(&mut guest, &is, || {
        fs::rename(path.join("d"), path.join("e")).unwrap()
    });
    // Also below a directory that has moved, by a path that the guest does not know.
    let made = look_up(&mut guest, d, "missing").node;
    outdated(&mut guest, &[contents_slot(made)], || {
        fs::write(path.join("e/missing"), "longer").unwrap();
    });
}

/// A name that the host replaces and puts back is told anew, although it is as it was.
#[test]
fn a_name_that_was_put_back_is_outdated_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("a"), "").unwrap();
    let mut guest = Guest::with_versions(path);
    let first = look_up(&mut guest, ROOT, "a");
    let is = [name_slot(ROOT, "a")];
    outdated(&mut guest, &is, || {
        fs::rename(path.join("a"), path.join("b")).unwrap()
    });
    assert_eq!(look_up(&mut guest, ROOT, "a").node, 0);
    outdated(&mut guest, &is, || {
        fs::rename(path.join("b"), path.join("a")).unwrap()
    });
    assert_eq!(look_up(&mut guest, ROOT, "a").node, first.node);
}

#[test]
fn what_the_guest_changes_outdates_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut guest = Guest::with_versions(path);
    let make = |guest: &mut Guest, name: &str| {
        let body = [&[0xed, 1, 0, 0, 0, 0, 0, 0][..], &words(&[name])].concat();
        received(&guest.ask(MKDIR, ROOT, &body).unwrap())
    };
    let seen = all_outdated(&mut guest, path, |guest| {
        for name in ["a", "b", "c"] {
            assert!(make(guest, name).name.is_some());
        }
        let body = [&ROOT.to_le_bytes()[..], &words(&["a", "d"])].concat();
        guest.ask(RENAME, ROOT, &body).unwrap();
        guest.ask(11, ROOT, &words(&["b"])).unwrap();
    });
    for name in ["a", "b", "c", "d"] {
        assert!(!seen.contains(&name_slot(ROOT, name)), "{name} of {seen:?}");
    }
    assert!(seen.contains(&contents_slot(ROOT)), "{seen:?}");
    assert_eq!(guest.ask(UNLINK, ROOT, &words(&["none"])), Err(2));
}

/// The host reports what changes in a directory by the name there; the guest knows only one of these.
#[test]
fn a_file_that_changes_through_another_name_is_outdated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::create_dir(path.join("unknown")).unwrap();
    fs::write(path.join("one"), "").unwrap();
    fs::hard_link(path.join("one"), path.join("unknown/two")).unwrap();
    let mut guest = Guest::with_versions(path);
    let one = look_up(&mut guest, ROOT, "one");
    assert!(one.name.is_some() && one.attributes.is_some(), "{one:?}");
    outdated(&mut guest, &[contents_slot(one.node)], || {
        fs::write(path.join("unknown/two"), "x").unwrap();
    });
}

#[test]
fn a_guest_without_a_table_is_told_for_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("one"), "").unwrap();
    let mut guest = Guest::new(path, false);
    let one = look_up(&mut guest, ROOT, "one");
    assert_eq!((one.name, one.attributes), (None, None));
    assert_eq!(guest.look_up(ROOT, b"none"), Err(2));
}

#[test]
fn nothing_is_written_to_a_table_after_the_guests_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut guest = Guest::with_versions(path);
    look_up(&mut guest, ROOT, "a");
    guest.ask(DESTROY, 0, &[]).unwrap();
    guest.outdated.clear();
    fs::File::create(path.join("a"))
        .unwrap()
        .write_all(b"x")
        .unwrap();
    assert_eq!(guest.look_up(ROOT, b"b"), Err(2));
    // Sleep: nothing may come meanwhile.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(guest.look_up(ROOT, b"b"), Err(2));
    assert_eq!(guest.outdated, []);
}

/// More changes than the host keeps: all is outdated, and nothing is missed.
#[test]
fn after_more_changes_than_are_reported_everything_is_outdated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("file"), "").unwrap();
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    let mut guest = Guest::with_versions(path);
    look_up(&mut guest, ROOT, "file");
    guest.outdated.clear();
    // The server compares more slowly than two threads make names.
    let mut round = 0;
    wait_until("all is outdated", || {
        round += 1;
        std::thread::scope(|scope| {
            for thread in 0..2 {
                scope.spawn(move || {
                    for number in 0..most {
                        let name = path.join(format!("{round}-{thread}-{number}"));
                        fs::write(&name, "").unwrap();
                        fs::remove_file(&name).unwrap();
                    }
                });
            }
        });
        look_up(&mut guest, ROOT, "file");
        guest.outdated.iter().any(|(_, slots)| slots.is_empty())
    });
    // It goes on as before.
    let file = look_up(&mut guest, ROOT, "file").node;
    outdated(&mut guest, &[contents_slot(file)], || {
        fs::write(path.join("file"), "x").unwrap();
    });
}
