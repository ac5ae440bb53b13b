//! A server that has no descriptor left says so, and leaves nothing.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::guest::{Guest, ROOT};

const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Operations (`linux/fuse.h`).
const SYMLINK: u32 = 6;
const MKNOD: u32 = 8;
const MKDIR: u32 = 9;
const LINK: u32 = 13;
const RELEASE: u32 = 18;
const CREATE: u32 = 35;

/// Descriptors that the server may have.
const FEW: u64 = 64;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn named(head: Vec<u8>, name: &str) -> Vec<u8> {
    [head, name.as_bytes().to_vec(), vec![0]].concat()
}

/// Makes a file that only its open descriptor writes, and keeps it open. Returns what the guest knows it by,
/// and the open file.
fn create(guest: &mut Guest, name: &str) -> Result<(u64, u64), i32> {
    const NEW_FOR_WRITING: u32 = 0o301;
    let made = guest.ask(
        CREATE,
        ROOT,
        &named(words(&[NEW_FOR_WRITING, 0o444, 0, 0]), name),
    )?;
    let number = |at: usize| u64::from_le_bytes(made[at..at + 8].try_into().unwrap());
    Ok((number(0), number(128)))
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_server_without_descriptors_says_so_and_leaves_no_entry() {
    let few = Rlimit {
        current: Some(FEW),
        maximum: Some(FEW),
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(folder.path(), false);
    let mut open = Vec::new();
    let error = loop {
        match create(&mut guest, &format!("lock{}", open.len())) {
            Ok(made) => open.push(made),
            Err(error) => break error,
        }
        assert!(open.len() < 1000, "there is no limit");
    };
    assert!([ENFILE, EMFILE].contains(&error), "error {error}");
    assert_eq!(count(folder.path()), open.len());

    let (known, handle) = open[0];
    let requests = [
        (MKDIR, named(words(&[0o755, 0]), "directory")),
        (MKNOD, named(words(&[0o010_644, 0, 0, 0]), "fifo")),
        (MKNOD, named(words(&[0o100_644, 0, 0, 0]), "file")),
        (SYMLINK, b"link\0target\0".to_vec()),
        (LINK, named(known.to_le_bytes().to_vec(), "name")),
    ];
    for (operation, body) in &requests {
        let before = count(folder.path());
        let made = guest.ask(*operation, ROOT, body);
        if let Err(error) = &made {
            assert!(
                [ENFILE, EMFILE].contains(error),
                "{operation}: error {error}"
            );
        }
        let is_there = count(folder.path()) > before;
        assert_eq!(is_there, made.is_ok(), "{operation}: {made:?}");
    }
    // It works again once there is room.
    guest
        .ask(
            RELEASE,
            known,
            &[&handle.to_le_bytes()[..], &[0; 16]].concat(),
        )
        .unwrap();
    create(&mut guest, "after").unwrap();
}
