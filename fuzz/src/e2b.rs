//! What `mica serve --e2b` reads: messages of clients' streams, parts of their bodies, replies of interpreters.
//!
//! The first byte of an input says in which pieces the rest comes.

use bytes::Bytes;
use micabox_server::fuzzing::{self, HEAD, MOST, PIECE, REPLY};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The boundary of bodies.
const BOUNDARY: &str = "B";

/// What a NUL byte of a body stands for: more than an input has.
const LONG: usize = 20 << 10;

fn in_pieces(bytes: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (size, bytes) = bytes.split_first()?;
    Some((bytes, bytes.chunks(usize::from(*size) + 1).collect()))
}

/// Reads messages: the same in any pieces, each as it was sent, up to one that is not taken.
pub fn stream(bytes: &[u8]) {
    let Some((bytes, pieces)) = in_pieces(bytes) else {
        return;
    };
    let (found, is_refused) = fuzzing::messages(&[bytes]);
    assert_eq!(
        fuzzing::messages(&pieces),
        (found.clone(), is_refused),
        "in other pieces"
    );
    let mut rest = bytes;
    for message in found {
        let (head, after) = rest.split_first_chunk::<5>().expect("a head");
        let [flags, length @ ..] = *head;
        assert_eq!(flags, 0);
        let length = u32::from_be_bytes(length) as usize;
        assert!(length <= MOST);
        let (sent, after) = after.split_at(length);
        assert!(message == sent, "it is another one");
        rest = after;
    }
    assert_eq!(is_refused, !rest.is_empty());
}

/// Reads a body: the same parts in any pieces, whose contents are there as they are; and nothing is kept without a limit.
pub fn parts(bytes: &[u8]) {
    let Some((bytes, pieces)) = in_pieces(bytes) else {
        return;
    };
    let long = [b'x'; LONG];
    let longer = |piece: &[u8]| -> Bytes {
        let pieces = piece.split(|byte| *byte == 0).collect::<Vec<_>>();
        pieces.join(&long[..]).into()
    };
    let body = longer(bytes);
    let (found, wrong) = fuzzing::parts(BOUNDARY, vec![body.clone()]);
    let pieces = pieces.into_iter().map(longer).collect();
    let (again, wrong_again) = fuzzing::parts(BOUNDARY, pieces);
    // What may be the beginning of a boundary waits for the next piece; and before the first boundary the library takes
    // two at a time.
    let end = format!("\r\n--{BOUNDARY}");
    let ahead = 2 * PIECE + end.len();
    for part in found.iter().chain(&again) {
        assert!(part.largest < ahead, "{} bytes", part.largest);
    }
    let limit = format!("{HEAD} bytes");
    let is_limit = |wrong: &Option<String>| wrong.as_ref().is_some_and(|why| why.contains(&limit));
    if is_limit(&wrong) || is_limit(&wrong_again) {
        // Where that is depends on the pieces.
        assert!(body.len() > HEAD - PIECE);
    } else {
        assert_eq!(wrong, wrong_again, "in other pieces");
        assert_eq!(found.len(), again.len(), "in other pieces");
    }
    // Contents are looked for where they are at first, which may be before their own place: empty ones are in what
    // precedes them. So it is the sum of all heads that has a limit.
    let (mut rest, mut heads) = (&body[..], 0);
    for (number, (part, same)) in found.iter().zip(&again).enumerate() {
        let names = |part: &fuzzing::Part| (part.name.clone(), part.file_name.clone());
        assert_eq!(names(part), names(same), "in other pieces");
        let is_whole = wrong.is_none() || number + 1 < found.len();
        if !is_whole {
            continue;
        }
        assert!(part.contents == same.contents, "in other pieces");
        let whole = [&part.contents[..], end.as_bytes()].concat();
        let at = find(rest, &whole).expect("the contents are there, and end with a boundary");
        heads += at;
        let most = (number + 1) * (HEAD + ahead);
        assert!(
            heads < most,
            "what precedes part {number} and those before has {heads} bytes"
        );
        rest = &rest[at + whole.len()..];
    }
}

fn find(bytes: &[u8], piece: &[u8]) -> Option<usize> {
    let mut places = bytes.windows(piece.len());
    places.position(|place| place == piece)
}

/// Reads replies: the same in any pieces; what is passed on is as it was written, in a line each.
pub fn replies(bytes: &[u8]) {
    let Some((bytes, pieces)) = in_pieces(bytes) else {
        return;
    };
    let (found, is_broken) = fuzzing::replies(&[bytes]);
    assert_eq!(
        fuzzing::replies(&pieces),
        (found.clone(), is_broken),
        "in other pieces"
    );
    let mut rest = bytes;
    for reply in found {
        let (length, after) = rest.split_first_chunk::<4>().expect("a length");
        let length = u32::from_le_bytes(*length) as usize;
        assert!(length <= REPLY);
        let (text, after) = after.split_at(length);
        rest = after;
        assert!(reply.is_line != Some(false), "{reply:?}");
        let mut sent: Fields = serde_json::from_slice(text).expect("it was read");
        let own = ["type", "request", "count", "display"];
        sent.0.retain(|(name, _)| !own.contains(&name.as_str()));
        let fields = reply.fields.strip_prefix(b",").unwrap_or_default();
        let fields = [b"{", fields, b"}"].concat();
        let told: Fields = serde_json::from_slice(&fields).expect("fields");
        assert_eq!(told, sent);
        assert!(reply.fields.len() <= length, "longer than it was");
    }
}

/// Names and values of an object, as they are written but for ends of lines.
#[derive(Debug, PartialEq, Eq)]
struct Fields(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    fields.push((name, value.get().replace(['\r', '\n'], " ")));
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(Pairs)
    }
}

fn seed(pieces: u8, bytes: &[u8]) -> Vec<u8> {
    [&[pieces][..], bytes].concat()
}

/// Streams of messages.
pub fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let message = |flags: u8, text: &str| {
        let length = (text.len() as u32).to_be_bytes();
        [&[flags][..], &length, text.as_bytes()].concat()
    };
    let some = [
        message(0, r#"{"start":{"process":{"pid":7}}}"#),
        message(0, ""),
        message(0, r#"{"data":{"input":{"stdin":"eA=="}}}"#),
    ]
    .concat();
    let compressed = [&some[..], &message(1, "{}")].concat();
    vec![
        ("some", seed(2, &some)),
        ("compressed", seed(255, &compressed)),
        ("large", seed(0, &[0, 0x7f, 0xff, 0xff, 0xff, 1, 2])),
        ("cut", seed(6, &some[..some.len() - 3])),
    ]
}

/// Bodies with parts.
pub fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let part = |name: &str, contents: &str| {
        format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{contents}\r\n"
        )
    };
    let two = [
        part("/tmp/a", "text"),
        part("b", "\r\n--C\r\n-"),
        "--B--\r\n".to_owned(),
    ];
    let long = [part("a", "\0\0\0\0\0"), "--B--".to_owned()].concat();
    // Longer heads than one may have together, and contents that are in the first of them.
    let heads = [part("", ""), part("\0\0\0", "").repeat(2), long.clone()].concat();
    let many = [&part("", "").repeat(8), &long[..]].concat();
    vec![
        ("two", seed(0, two.concat().as_bytes())),
        ("contents", seed(9, long.as_bytes())),
        ("many", seed(255, many.as_bytes())),
        ("heads", seed(9, heads.as_bytes())),
        ("header", seed(9, part("\0\0\0\0\0", "x").as_bytes())),
        ("preamble", seed(255, b"\0\0\0\0\0--B\r\n\r\n\r\n--B--")),
    ]
}

/// What interpreters say.
pub fn said() -> Vec<(&'static str, Vec<u8>)> {
    let reply = |text: &str| {
        let length = (text.len() as u32).to_le_bytes();
        [&length[..], text.as_bytes()].concat()
    };
    let some = [
        reply(r#"{"type": "ready", "request": 0, "version": "3.12"}"#),
        reply(r#"{"type": "stdout", "request": 1, "text": "a\nb\ud800"}"#),
        reply(
            "{\"type\": \"result\", \"request\": 1, \"display\": true, \"json\": {\"a\": [1,\n2]}}",
        ),
        reply(
            r#"{"type":"result","data":[12345678901234567890123,0.10000000000000000055,1e400,-0]}"#,
        ),
        reply(r#"{"type": "error", "request": 1, "name": "E", "value": "é", "traceback": ""}"#),
        reply(r#"{"type": "end", "request": 1, "count": 2}"#),
    ];
    vec![
        ("some", seed(4, &some.concat())),
        ("none", seed(0, &reply("[]"))),
        ("large", seed(30, &[0xff, 0xff, 0xff, 0x7f, b'{'])),
    ]
}
