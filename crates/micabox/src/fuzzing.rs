//! Entry points for `fuzz/`: parsers of foreign files and of workers' replies.

use std::io;
use std::path::PathBuf;

use micabox_jail::Call;
use micabox_wire::files::FileReply;

use crate::jailed::{self, ext4, records};
use crate::snapshot::file::head_alone;
use crate::upper::read_changes;
use crate::{DirectoryEntry, FileEvent, Snapshot};

/// Reads the head of an exported snapshot, and the runs of bytes of its disk.
///
/// # Errors
/// Those of an import.
pub fn snapshot_head(mut file: &[u8]) -> io::Result<(Snapshot, Vec<(u64, u64)>)> {
    head_alone(&mut file)
}

/// Decodes a reply of one of the kinds of workers and encodes it again; None if the reply is
/// invalid.
type Reader = fn(&[u8]) -> Option<Vec<u8>>;

/// One reader for each form of a reply.
pub const REPLIES: &[Reader] = &[
    reply::<jailed::Changes>,
    reply::<jailed::Look>,
    reply::<jailed::Patches>,
    reply::<jailed::Inspect>,
    reply::<ext4::Show>,
    reply::<ext4::Import>,
    reply::<ext4::Check>,
    reply::<ext4::Replay>,
    reply::<ext4::Grow>,
];

fn reply<C: Call>(bytes: &[u8]) -> Option<Vec<u8>> {
    let reply: Result<C::Reply, C::Error> = postcard::from_bytes(bytes).ok()?;
    postcard::to_allocvec(&reply).ok()
}

/// Decodes a worker's listing of a filesystem, as far as it is valid, and encodes it again.
pub fn listed(mut told: &[u8]) -> Vec<u8> {
    let mut again = Vec::new();
    while let Ok(Some(listed)) = records::read::<ext4::Listed>(&mut told) {
        if records::write(&mut again, &listed).is_err() {
            break;
        }
    }
    again
}

/// Puts together the paths of the changes in a worker's records, and calls `each` with them.
///
/// # Errors
/// An invalid record.
pub fn changes(mut told: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    read_changes(&mut told, |change| {
        each(change.path);
        Ok(())
    })
}

/// Returns the path of a file that an agent reports, if the SDK would pass it on.
pub fn found(reply: FileReply) -> Option<PathBuf> {
    match reply {
        FileReply::Entry(entry) => DirectoryEntry::new(entry).ok().map(|entry| entry.path),
        FileReply::Event(event) => FileEvent::new(event).ok().map(|event| event.path),
        _ => None,
    }
}
