//! A guest's query and a resolver's response.

use micabox_net::fuzzing::{Exchange, exchange, name};

/// The identification under which the query is forwarded.
const ID: u16 = 0x5a17;
const HEADER: usize = 12;

/// Parses two messages, with the first one's length before it: a query and the response.
pub fn messages(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (question, answer) = rest.split_at(length);
    let mut response = answer.to_vec();
    // Resolvers never get this wrong, and mutation always does.
    if let Some(id) = response.get_mut(..2) {
        id.copy_from_slice(&ID.to_be_bytes());
    }
    let Some(found) = exchange(question, &response, ID) else {
        return;
    };
    let repeated = &found.refusal[HEADER..];
    assert_eq!(
        found.refusal[..2],
        question[..2],
        "another's identification"
    );
    assert_eq!(found.refusal[2] & 0x80, 0x80, "not a response");
    assert_eq!(found.refusal[3] & 0xf, 5, "not refused");
    assert_eq!(*repeated, question[HEADER..HEADER + repeated.len()]);
    assert_eq!(found.forwarded[..2], ID.to_be_bytes());
    assert_eq!(found.forwarded[2..], question[2..]);
    // Messages that the proxy sends, to the guest or to the resolver, must not count as responses.
    let own = exchange(question, &found.forwarded, ID);
    assert!(own.is_none_or(|own| !own.is_answered && own.addresses.is_empty()));
    names(&found, question);
    answers(&found, &response);
}

/// Checks the name against that of another reader.
fn names(found: &Exchange, question: &[u8]) {
    let labels = labels(question, HEADER).expect("a question has a name");
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_plain = labels.iter().all(|label| label.iter().all(plain));
    let text = labels.join(&b'.').to_ascii_lowercase();
    match &found.name {
        Some(name) => {
            assert_eq!(name.as_bytes(), text);
            assert!(is_plain && (1..=253).contains(&name.len()));
            assert_eq!(self::name(name).as_ref(), Some(name), "read again");
        }
        None => assert!(!is_plain || text.is_empty() || text.len() > 253),
    }
}

fn answers(found: &Exchange, response: &[u8]) {
    let count = |at: usize| usize::from(u16::from_be_bytes([response[at], response[at + 1]]));
    assert!(found.is_answered || found.addresses.is_empty());
    if found.is_answered {
        assert_eq!(count(4), 1);
        assert!(found.addresses.len() <= count(6), "more than there are");
    }
    for (address, _) in &found.addresses {
        let there = response.windows(4).any(|four| four == address.octets());
        assert!(there, "{address} is not in the answer");
    }
}

/// Reads the labels of a name, in the simplest way.
fn labels(message: &[u8], mut at: usize) -> Option<Vec<Vec<u8>>> {
    let mut labels = Vec::new();
    for _ in 0..message.len() {
        match *message.get(at)? {
            0 => return Some(labels),
            length @ 1..=63 => {
                let end = at + 1 + usize::from(length);
                labels.push(message.get(at + 1..end)?.to_vec());
                at = end;
            }
            high => at = usize::from(high & 0x3f) << 8 | usize::from(*message.get(at + 1)?),
        }
    }
    None
}

/// A query with a response: an alias and an address; and one whose name is a pointer.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let question = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x03www\x07example\x04test\0\0\x01\0\x01";
    let mut answer = question.to_vec();
    answer[2] = 0x81;
    answer[7] = 2;
    answer.extend(b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x06\x03cdn\xc0\x10");
    answer.extend(b"\x03cdn\xc0\x10\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01");
    let pair = |question: &[u8], answer: &[u8]| {
        let length = question.len() as u16;
        [&length.to_le_bytes(), question, answer].concat()
    };
    let root = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\0\0\x02\0\x01";
    vec![
        ("alias", pair(question, &answer)),
        ("root", pair(root, root)),
        ("silence", pair(question, b"")),
    ]
}
