//! What workers in jail tell their owners: they read hostile bytes, and may be in foreign hands.

use micabox::fuzzing::{REPLIES, changes, listed};

/// A byte that says what it is, and a worker's reply, or records out of its pipe.
pub fn told(input: &[u8]) {
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
            // Errors are what most of it is.
            let _ = changes(bytes, |path| {
                assert!(path.starts_with(b"/"));
                assert!(path.len() <= bytes.len(), "longer than all that was told");
            });
        }
    }
}

/// Short forms of each.
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
