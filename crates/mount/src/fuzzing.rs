//! What a worker sends of an archive, for `fuzz/`.

use micabox_memfs::Filesystem;
use micabox_tar::{Attributes, Kind, Member};

use crate::kept::{KeepError, receive as fill};
use crate::kept::{Received, Sender};

/// Fills a filesystem with what a worker sends.
///
/// # Errors
/// [`KeepError`].
pub fn receive(files: &Filesystem, sent: &[u8]) -> Result<(), KeepError> {
    fill(files, &mut Received::new(sent))
}

/// Returns what a worker sends of a small tree.
#[must_use]
pub fn sample() -> Vec<u8> {
    let mut sender = Sender::new(Vec::new());
    let members = [
        ("d", Kind::Directory, ""),
        ("d/file", Kind::file(4), "text"),
        ("hard", Kind::HardLink(b"d/file".to_vec()), ""),
        ("link", Kind::Symlink(b"d".to_vec()), ""),
        ("fifo", Kind::Fifo, ""),
        ("null", Kind::CharDevice(1, 3), ""),
    ];
    for (path, kind, body) in members {
        let attributes = Attributes {
            mode: 0o644,
            xattrs: vec![(b"user.a".to_vec(), b"v".to_vec())],
            ..Attributes::default()
        };
        let member = Member {
            path: path.into(),
            kind,
            attributes,
        };
        // A vector takes all.
        let _ = sender.add(&member, &mut body.as_bytes());
    }
    sender.into_inner()
}
