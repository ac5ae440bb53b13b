//! The data that jailed workers send to their owners: workers read hostile bytes, and may be
//! compromised.

use std::io;

use micabox_jail::Call;
use micabox_parsers::{self as parsers, read_changes, records};

/// Decodes a reply of one of the kinds of workers and encodes it again; None if the reply is
/// invalid.
type Reader = fn(&[u8]) -> Option<Vec<u8>>;

/// One reader for each form of a reply.
const REPLIES: &[Reader] = &[
    reply::<parsers::Changes>,
    reply::<parsers::Look>,
    reply::<parsers::Patches>,
    reply::<parsers::Inspect>,
    reply::<parsers::ext4::Show>,
    reply::<parsers::ext4::Import>,
    reply::<parsers::ext4::Check>,
    reply::<parsers::ext4::Replay>,
    reply::<parsers::ext4::Grow>,
];

fn reply<C: Call>(bytes: &[u8]) -> Option<Vec<u8>> {
    let reply: Result<C::Reply, C::Error> = postcard::from_bytes(bytes).ok()?;
    postcard::to_allocvec(&reply).ok()
}

/// Decodes a worker's listing of a filesystem, as far as it is valid, and encodes it again.
fn listed(mut told: &[u8]) -> Vec<u8> {
    let mut again = Vec::new();
    while let Ok(Some(listed)) = records::read::<parsers::ext4::Listed>(&mut told) {
        if records::write(&mut again, &listed).is_err() {
            break;
        }
    }
    again
}

/// Puts together the paths of the changes in a worker's records, and calls `each` with them.
fn changes(mut told: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    read_changes(&mut told, |change| {
        each(change.path);
        Ok(())
    })
}

/// Parses a worker's reply, or records from its pipe; the first byte chooses which.
pub fn answers(input: &[u8]) {
    let Some((&kind, bytes)) = input.split_first() else {
        return;
    };
    let kind = usize::from(kind) % (REPLIES.len() + 2);
    match REPLIES.get(kind) {
        Some(read) => {
            if let Some(again) = read(bytes) {
                assert_eq!(read(&again).as_ref(), Some(&again), "read again");
            }
        }
        None if kind == REPLIES.len() => {
            let again = listed(bytes);
            assert_eq!(listed(&again), again, "read again");
        }
        None => {
            // Most inputs are errors.
            let _ = changes(bytes, |path| {
                assert!(path.starts_with(b"/"));
                assert!(path.len() <= bytes.len(), "longer than the message");
            });
        }
    }
}

/// Short instances of each.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let record = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes(), bytes].concat();
    let mut seeds = Vec::new();
    for kind in 0..REPLIES.len() as u8 {
        seeds.push(("done", [&[kind], &[0; 200][..]].concat()));
        seeds.push(("refused", vec![kind, 1, 0, 2, b'n', b'o']));
    }
    let kind = REPLIES.len() as u8;
    let names = [record(b"\x01a\x00"), record(b"\x02bc\x00")].concat();
    seeds.push(("names", [&[kind], &names[..]].concat()));
    let steps = [record(b"\x01\x00\x01a"), record(b"\x00\x01\x02bc")];
    seeds.push(("changes", [&[kind + 1], &steps.concat()[..]].concat()));
    seeds
}
