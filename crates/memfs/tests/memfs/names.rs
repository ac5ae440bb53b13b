//! Names and directories.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use micabox_memfs::{Errno, FileKind, Filesystem, Limits, New, ROOT, RenameMode, SetMode, Usage};

fn filesystem() -> Filesystem {
    let limits = Limits {
        bytes: 1 << 20,
        inodes: 200_000,
    };
    Filesystem::new(limits, 0o755, 0, 0)
}

fn directory(files: &Filesystem, parent: u64, name: &[u8]) -> u64 {
    files
        .make(parent, name, &New::directory(0o755, 0, 0))
        .unwrap()
        .number
}

fn file(files: &Filesystem, parent: u64, name: &[u8]) -> u64 {
    files
        .make(parent, name, &New::file(0o644, 0, 0))
        .unwrap()
        .number
}

fn names(files: &Filesystem, directory: u64, after: u64, most: usize) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    let listed = files.list(directory, after, |entry, _| {
        names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.after));
        names.len() < most
    });
    listed.unwrap();
    names
}

#[test]
fn a_directory_is_never_moved_into_itself() {
    let files = filesystem();
    let a = directory(&files, ROOT, b"a");
    let b = directory(&files, a, b"b");
    let c = directory(&files, b, b"c");
    let rename = |from, name: &[u8], to, mode| files.rename(from, name, to, b"x", mode);
    for (to, mode) in [
        (a, RenameMode::Replace),
        (b, RenameMode::Replace),
        (c, RenameMode::NoReplace),
    ] {
        assert_eq!(rename(ROOT, b"a", to, mode), Err(Errno::INVAL));
    }
    assert_eq!(
        files.rename(ROOT, b"a", b, b"c", RenameMode::Exchange),
        Err(Errno::INVAL)
    );
    assert_eq!(
        files.rename(b, b"c", ROOT, b"a", RenameMode::Exchange),
        Err(Errno::INVAL)
    );
    assert_eq!(
        files.rename(b, b"c", ROOT, b"a", RenameMode::Replace),
        Err(Errno::NOTEMPTY)
    );
    // Links follow what is in a directory.
    files
        .rename(b, b"c", ROOT, b"c", RenameMode::Replace)
        .unwrap();
    let links = |number| files.stat(number).unwrap().links;
    assert_eq!((links(ROOT), links(a), links(b), links(c)), (4, 3, 2, 2));
}

#[test]
fn a_whiteout_is_left_where_a_name_was() {
    let files = filesystem();
    file(&files, ROOT, b"old");
    let mode = RenameMode::Whiteout { uid: 1, gid: 2 };
    files.rename(ROOT, b"old", ROOT, b"new", mode).unwrap();
    let stat = files.look_up(ROOT, b"old").unwrap();
    assert_eq!((stat.kind, stat.device), (FileKind::CharDevice, (0, 0)));
    assert_eq!((stat.uid, stat.gid, stat.links), (1, 2, 1));
}

#[test]
fn names_are_checked_and_links_counted() {
    let files = filesystem();
    let one = file(&files, ROOT, &[b'x'; 255]);
    let new = New::file(0o644, 0, 0);
    let make = |name: &[u8]| files.make(ROOT, name, &new).map(drop);
    assert_eq!(make(&[b'x'; 256]), Err(Errno::NAMETOOLONG));
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert_eq!(make(name), Err(Errno::INVAL));
    }
    assert_eq!(make(&[b'x'; 255]), Err(Errno::EXIST));
    for number in 1..65_000 {
        files
            .link(one, ROOT, number.to_string().as_bytes())
            .unwrap();
    }
    assert_eq!(files.link(one, ROOT, b"more"), Err(Errno::MLINK));
    assert_eq!(files.stat(one).unwrap().links, 65_000);
    assert_eq!(files.usage().inodes, 65_000);
}

#[test]
fn an_inode_stays_until_its_last_name_and_its_last_holder_are_gone() {
    let files = filesystem();
    let one = file(&files, ROOT, b"one");
    files.write(one, 0, b"still here").unwrap();
    files
        .set_xattr(one, b"user.x", b"value", SetMode::Any, false)
        .unwrap();
    files.unlink(ROOT, b"one").unwrap();
    assert_eq!(files.look_up(ROOT, b"one"), Err(Errno::NOENT));
    assert_eq!(
        files.read(one, 0, 100, |pieces| pieces.concat()),
        Ok(b"still here".to_vec())
    );
    // Without a name from the beginning, and then with one.
    let unnamed = files.make_unnamed(ROOT, &New::file(0o600, 0, 0)).unwrap();
    assert_eq!(unnamed.links, 0);
    assert_eq!(files.link(unnamed.number, ROOT, b"named").unwrap().links, 1);
    files.forget(one, 1);
    assert_eq!(files.stat(one), Err(Errno::STALE));
    files.forget(unnamed.number, 2);
    files.unlink(ROOT, b"named").unwrap();
    assert_eq!(
        files.usage(),
        Usage {
            bytes: 0,
            inodes: 0
        }
    );
}

#[test]
fn nothing_is_made_in_a_directory_that_was_removed() {
    let files = filesystem();
    let gone = directory(&files, ROOT, b"gone");
    files.remove_directory(ROOT, b"gone").unwrap();
    assert_eq!(
        files.make(gone, b"x", &New::file(0o644, 0, 0)).map(drop),
        Err(Errno::NOENT)
    );
    let other = file(&files, ROOT, b"other");
    assert_eq!(files.link(other, gone, b"x").map(drop), Err(Errno::NOENT));
    assert_eq!(
        files.rename(ROOT, b"other", gone, b"x", RenameMode::Replace),
        Err(Errno::NOENT)
    );
}

#[test]
fn listing_goes_on_while_entries_come_and_go() {
    let files = filesystem();
    for number in 0..100 {
        file(&files, ROOT, format!("stays{number}").as_bytes());
        file(&files, ROOT, format!("goes{number}").as_bytes());
    }
    let (mut seen, mut after, mut round) = (Vec::new(), 0, 0);
    loop {
        let part = names(&files, ROOT, after, 7);
        let Some((_, last)) = part.last() else { break };
        after = *last;
        seen.extend(part.into_iter().map(|(name, _)| name));
        if round < 100 {
            files
                .unlink(ROOT, format!("goes{round}").as_bytes())
                .unwrap();
            files
                .rename(ROOT, b"stays0", ROOT, b"moved", RenameMode::Replace)
                .unwrap();
            files
                .rename(ROOT, b"moved", ROOT, b"stays0", RenameMode::Replace)
                .unwrap();
        }
        round += 1;
    }
    let once: BTreeSet<&String> = seen.iter().collect();
    let is_listed = |number: &i32| {
        seen.iter()
            .filter(|name| **name == format!("stays{number}"))
            .count()
            == 1
    };
    assert!((1..100).all(|number| is_listed(&number)), "{seen:?}");
    assert!(once.contains(&".".to_owned()) && once.contains(&"..".to_owned()));
}

#[test]
fn listing_ends_while_what_it_meets_is_renamed() {
    let files = filesystem();
    for number in 0..100 {
        file(&files, ROOT, number.to_string().as_bytes());
    }
    let (mut seen, mut after) = (0, 0);
    while let [(name, next)] = &names(&files, ROOT, after, 1)[..] {
        (seen, after) = (seen + 1, *next);
        assert!(seen <= 102, "{name} is listed again");
        if !name.starts_with('.') {
            let rename = |from: &str, to: &str| {
                let (from, to) = (from.as_bytes(), to.as_bytes());
                files.rename(ROOT, from, ROOT, to, RenameMode::Replace)
            };
            rename(name, "temporary").unwrap();
            rename("temporary", name).unwrap();
        }
    }
    assert_eq!(seen, 102);
}

#[test]
fn operations_side_by_side_neither_stop_each_other_nor_lose_a_file() {
    let files = filesystem();
    let places: Vec<u64> = (0..4)
        .map(|number| directory(&files, ROOT, format!("d{number}").as_bytes()))
        .collect();
    for number in 0..40 {
        file(&files, places[number % 4], format!("f{number}").as_bytes());
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for worker in 0..4_usize {
            let (files, places, stop) = (&files, &places, &stop);
            scope.spawn(move || {
                for turn in 0..3000_usize {
                    let (from, to) = (
                        places[(worker + turn) % 4],
                        places[(worker * 3 + turn * 7) % 4],
                    );
                    let name = format!("f{}", (turn * 13 + worker) % 40);
                    let _ = files.rename(
                        from,
                        name.as_bytes(),
                        to,
                        name.as_bytes(),
                        RenameMode::NoReplace,
                    );
                    let _ = files.rename(ROOT, b"d0", places[1], b"d0", RenameMode::NoReplace);
                    let _ = files.rename(places[1], b"d0", ROOT, b"d0", RenameMode::NoReplace);
                    let temporary = format!("t{worker}");
                    if let Ok(stat) =
                        files.make(from, temporary.as_bytes(), &New::directory(0o755, 0, 0))
                    {
                        files.remove_directory(from, temporary.as_bytes()).unwrap();
                        files.forget(stat.number, 1);
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for &place in &places {
                    let _ = names(&files, place, 0, usize::MAX);
                }
            }
        });
    });
    let left: usize = places
        .iter()
        .map(|&place| {
            names(&files, place, 0, usize::MAX)
                .iter()
                .filter(|(name, _)| name.starts_with('f'))
                .count()
        })
        .sum();
    assert_eq!(left, 40);
    assert_eq!(files.usage().inodes, 44);
}
