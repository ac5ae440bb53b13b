//! Doors for `fuzz/` to what is read of others' files, and of what workers in jail tell.

use std::io;

use micabox_jail::Call;

use crate::Snapshot;
use crate::jailed::{self, ext4, records};
use crate::snapshot::file::head_alone;
use crate::upper::read_changes;

/// The head of an exported snapshot, and the runs of bytes that its disk has.
///
/// # Errors
/// What an import would say.
pub fn snapshot_head(mut file: &[u8]) -> io::Result<(Snapshot, Vec<(u64, u64)>)> {
    head_alone(&mut file)
}

/// Reads a reply of one of the kinds of workers and writes it again; none if it is no reply.
type Reader = fn(&[u8]) -> Option<Vec<u8>>;

/// One for each form that a reply has.
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

/// Reads what a worker lists of a filesystem, as far as it makes sense, and writes it again.
pub fn listed(mut told: &[u8]) -> Vec<u8> {
    let mut again = Vec::new();
    while let Ok(Some(listed)) = records::read::<ext4::Listed>(&mut told) {
        if records::write(&mut again, &listed).is_err() {
            break;
        }
    }
    again
}

/// Puts together the paths that a worker tells the changes of, and calls `each` with them.
///
/// # Errors
/// What makes no sense.
pub fn changes(mut told: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    read_changes(&mut told, |change| {
        each(change.path);
        Ok(())
    })
}
