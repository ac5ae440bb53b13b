//! The data that jailed workers send to their owners: workers read hostile bytes, and may be
//! compromised.

use micabox::fuzzing::{REPLIES, changes, listed};

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
