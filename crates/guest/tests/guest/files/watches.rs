//! Watches of files and directories: what they report, and when.

use std::fs;

use micabox_wire::files::{FileChange, FileReply, FileRequest};
use micabox_wire::{Decoder, Exec, ExitStatus, ToGuest, ToHost};

use super::{bytes, operation};
use crate::host::Host;

#[test]
fn changes_are_reported_as_they_happen() {
    use FileChange::{Created, Modified, MovedFrom, MovedTo, Removed, Written};
    let place = tempfile::tempdir().unwrap();
    let top = place.path().join("top");
    let at = |name: &str| top.join(name);
    fs::create_dir_all(at("old/below")).unwrap();
    let mut host = Host::new();
    host.exec(
        1,
        operation(&FileRequest::Watch {
            path: bytes(&top),
            recursive: true,
        }),
    );
    host.started(1);
    let mut decoder = Decoder::new();
    // Changes up to the wanted one.
    let mut until = |change, path: &str| {
        let mut seen = Vec::new();
        loop {
            while let Some(reply) = decoder.next_message().unwrap() {
                let FileReply::Event(event) = reply else {
                    panic!("{reply:?}");
                };
                let text = String::from_utf8(event.path).unwrap();
                seen.push((event.change, text, event.cookie));
            }
            if seen
                .iter()
                .any(|(what, text, _)| (*what, &**text) == (change, path))
            {
                return seen;
            }
            match host.receive() {
                ToHost::Output { data, .. } => decoder.push(&data),
                other => panic!("{other:?} after {seen:?}"),
            }
        }
    };
    fs::write(at("old/below/file"), "x").unwrap();
    let seen = until(Written, "old/below/file");
    let changes: Vec<_> = seen.iter().map(|(change, ..)| *change).collect();
    assert_eq!(changes, [Created, Modified, Written]);

    // Directories that are made at once, and what is in them.
    fs::create_dir_all(at("new/a/b")).unwrap();
    until(Created, "new/a/b");
    fs::write(at("new/a/b/file"), "x").unwrap();
    until(Written, "new/a/b/file");

    // A directory is watched on where it is moved to, and not where it leaves.
    fs::rename(at("new/a"), at("moved")).unwrap();
    let seen = until(MovedTo, "moved");
    let cookies: Vec<_> = seen.iter().map(|(.., cookie)| *cookie).collect();
    assert!(
        cookies.len() == 2 && cookies[0] == cookies[1] && cookies[0] != 0,
        "{seen:?}"
    );
    assert_eq!(seen[0].0, MovedFrom);
    fs::write(at("moved/b/file"), "y").unwrap();
    until(Written, "moved/b/file");
    fs::rename(at("moved"), place.path().join("outside")).unwrap();
    until(MovedFrom, "moved");
    fs::write(place.path().join("outside/b/file"), "z").unwrap();
    fs::remove_file(at("old/below/file")).unwrap();
    let seen = until(Removed, "old/below/file");
    assert_eq!(seen.len(), 1, "{seen:?}");
    // With what is watched, the watch ends.
    fs::remove_dir_all(&top).unwrap();
    until(Removed, "");
    assert!(matches!(
        host.receive(),
        ToHost::Exited {
            status: ExitStatus::Exited(0),
            ..
        }
    ));

    // One file.
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    host.exec(
        1,
        operation(&FileRequest::Watch {
            path: bytes(&file),
            recursive: false,
        }),
    );
    host.started(1);
    let mut decoder = Decoder::new();
    fs::write(&file, "x").unwrap();
    match host.receive() {
        ToHost::Output { data, .. } => decoder.push(&data),
        other => panic!("{other:?}"),
    }
    match decoder.next_message().unwrap() {
        Some(FileReply::Event(event)) => {
            assert_eq!((event.change, &*event.path), (Modified, &b""[..]))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_watch_answers_once_it_has_told_what_came_before_the_question() {
    let place = tempfile::tempdir().unwrap();
    let watch = FileRequest::Watch {
        path: bytes(place.path()),
        recursive: false,
    };
    let mut host = Host::new();
    let spec = Exec {
        stdin: true,
        ..operation(&watch)
    };
    host.exec(1, spec);
    host.started(1);
    let mut decoder = Decoder::new();
    let mut so_far = |host: &mut Host, asked: usize| {
        host.send(ToGuest::Stdin {
            id: 1,
            data: vec![0; asked],
        });
        let (mut seen, mut told) = (Vec::new(), 0);
        while told < asked {
            match decoder.next_message().unwrap() {
                Some(FileReply::Event(event)) => seen.push(String::from_utf8(event.path).unwrap()),
                Some(FileReply::Told) => told += 1,
                Some(other) => panic!("{other:?}"),
                None => match host.receive() {
                    ToHost::Output { data, .. } => decoder.push(&data),
                    ToHost::StdinCredit { .. } => {}
                    other => panic!("{other:?} after {seen:?}"),
                },
            }
        }
        seen
    };
    assert_eq!(so_far(&mut host, 1), [""; 0]);
    for name in 0..50 {
        let name = name.to_string();
        fs::write(place.path().join(&name), "x").unwrap();
        let seen = so_far(&mut host, 1);
        assert!(
            seen.len() == 3 && seen.iter().all(|path| *path == name),
            "{seen:?}"
        );
    }
    assert_eq!(so_far(&mut host, 3), [""; 0]);
    // Without questions it goes on.
    host.send(ToGuest::CloseStdin { id: 1 });
    fs::write(place.path().join("last"), "").unwrap();
    match host.receive() {
        ToHost::Output { .. } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_watches_of_a_directory_are_apart() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("below")).unwrap();
    let mut host = Host::new();
    for (id, recursive) in [(1, false), (2, true)] {
        let watch = FileRequest::Watch {
            path: bytes(place.path()),
            recursive,
        };
        host.exec(id, operation(&watch));
        host.started(id);
    }
    // What a command is told until it is told of this path.
    let until = |host: &mut Host, id: u32, path: &str| {
        let (mut decoder, mut seen) = (Decoder::new(), Vec::new());
        loop {
            while let Some(reply) = decoder.next_message().unwrap() {
                let FileReply::Event(event) = reply else {
                    panic!("{reply:?}");
                };
                seen.push(String::from_utf8(event.path).unwrap());
            }
            if seen.iter().any(|seen| seen == path) {
                return seen;
            }
            match host.receive() {
                ToHost::Output { id: from, data, .. } if from == id => decoder.push(&data),
                ToHost::Output { .. } => {}
                other => panic!("{other:?} after {seen:?}"),
            }
        }
    };
    fs::create_dir(place.path().join("below/in")).unwrap();
    fs::create_dir(place.path().join("last")).unwrap();
    assert_eq!(until(&mut host, 2, "last"), ["below/in", "last"]);
    // The watch that both have goes on without the first.
    host.send(ToGuest::Signal { id: 1, signal: 9 });
    loop {
        match host.receive() {
            ToHost::Exited { id: 1, .. } => break,
            ToHost::Output { id: 1, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    fs::create_dir(place.path().join("more")).unwrap();
    assert_eq!(until(&mut host, 2, "more"), ["more"]);
    fs::create_dir(place.path().join("below/in/more")).unwrap();
    assert_eq!(until(&mut host, 2, "below/in/more"), ["below/in/more"]);
}
