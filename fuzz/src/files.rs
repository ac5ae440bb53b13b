//! Operations on a running sandbox's files, in both directions: requests as the agent reads them, and
//! the replies of an agent that may lie.

use std::path::{Component, PathBuf};

use micabox_file::{FileKind, Timestamp};
use micabox_operations as operations;
use micabox_wire::files::{
    Existing, FileChange, FileEntry, FileEvent, FileFailed, FileReply, FileRequest, FileStat,
};

use super::wire::{encoded, frames};

/// Decodes a request or replies; the first byte chooses which, and the size of pieces.
pub fn operation(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    match first & 1 {
        0 => {
            if let Ok(request) = FileRequest::decode(bytes) {
                let again = request.encode();
                assert_eq!(FileRequest::decode(&again).ok(), Some(request));
            }
        }
        _ => {
            frames::<FileReply>(bytes, usize::from(first >> 1) + 1);
            replies(bytes);
        }
    }
}

/// Returns the path of a file that an agent reports, if the SDK would pass it on.
fn found(reply: FileReply) -> Option<PathBuf> {
    match reply {
        FileReply::Entry(entry) => operations::DirectoryEntry::new(entry)
            .ok()
            .map(|entry| entry.path),
        FileReply::Event(event) => operations::FileEvent::new(event)
            .ok()
            .map(|event| event.path),
        _ => None,
    }
}

/// Checks that nothing a reply says leads out of the directory that was asked for.
fn replies(mut bytes: &[u8]) {
    while let Ok(Some(reply)) = micabox_wire::read_message::<FileReply>(&mut bytes) {
        match &reply {
            FileReply::Stat(stat) | FileReply::Entry(FileEntry { stat, .. }) => {
                for time in [stat.accessed, stat.modified, stat.changed] {
                    if let Some(system) = time.system() {
                        let again = Timestamp::from(system);
                        assert!(again.nanos < 1_000_000_000 && again.system() == Some(system));
                    }
                }
            }
            FileReply::Failed(failed) => {
                let _ = failed.error().to_string();
            }
            _ => {}
        }
        if let Some(path) = found(reply) {
            let mut parts = path.components();
            assert!(
                parts.all(|part| matches!(part, Component::Normal(_))),
                "{path:?}"
            );
        }
    }
}

/// A request of some kinds, and each reply.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let path = b"/srv/data".to_vec();
    let time = Timestamp {
        seconds: -1,
        nanos: 999_999_999,
    };
    let stat = FileStat {
        kind: FileKind::Symlink,
        mode: 0o777,
        uid: 0,
        gid: 50,
        size: 4,
        allocated: 4096,
        links: 1,
        inode: 7,
        device: (0, 0),
        accessed: time,
        modified: time,
        changed: Timestamp::default(),
        created: None,
    };
    let requests = [
        FileRequest::Read {
            path: path.clone(),
            offset: 1,
            length: Some(1 << 40),
        },
        FileRequest::Write {
            path: path.clone(),
            existing: Existing::At(300),
            mode: 0o644,
            parents: true,
        },
        FileRequest::Set {
            path: path.clone(),
            follow: true,
            mode: Some(0o600),
            uid: Some(1),
            gid: None,
            accessed: Some(time),
            modified: None,
        },
        FileRequest::Rename {
            from: path.clone(),
            to: b"x".to_vec(),
            replace: false,
        },
        FileRequest::Watch {
            path: path.clone(),
            recursive: true,
        },
    ];
    let entry = FileEntry {
        path: b"a/link".to_vec(),
        stat,
        target: b"../x".to_vec(),
    };
    let event = FileEvent {
        change: FileChange::MovedTo,
        path: b"a/b".to_vec(),
        is_directory: false,
        cookie: 9,
    };
    let failed = FileFailed {
        path: path.clone(),
        errno: 28,
        message: "full".into(),
    };
    let left_out = FileReply::LeftOut {
        path,
        what: "a socket".into(),
    };
    let streams = [
        ("stat", vec![FileReply::Stat(stat)]),
        (
            "entries",
            vec![FileReply::Entry(entry.clone()), FileReply::Entry(entry)],
        ),
        (
            "target",
            vec![FileReply::Target {
                target: b"/x".to_vec(),
            }],
        ),
        ("events", vec![FileReply::Event(event)]),
        ("failed", vec![left_out, FileReply::Failed(failed)]),
    ];
    let requests = requests.iter();
    let requests = requests.map(|request| ("request", [&[0], &*request.encode()].concat()));
    let streams = streams
        .iter()
        .map(|(name, replies)| (*name, encoded(255, replies)));
    requests.chain(streams).collect()
}
