//! The parts of DNS messages (RFC 1035, section 4) that the proxy needs.
//!
//! Both guest and resolver are untrusted. Every position is checked, and a compressed name may only
//! point backwards, so that parsing terminates.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::Name;

const HEADER: usize = 12;
/// In the second word of the header: the message is a response.
const RESPONSE: u16 = 1 << 15;
const OPCODE: u16 = 0xf << 11;
const RECURSION_DESIRED: u16 = 1 << 8;
const RECURSION_AVAILABLE: u16 = 1 << 7;

const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const CLASS_INTERNET: u16 = 1;

/// Response codes that the proxy itself sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// No resolver answered.
    ServerFailure = 2,
    /// The policy denies the name.
    Refused = 5,
}

/// A query to forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Query {
    /// The message as received. Error responses repeat it up to the question's end.
    bytes: Vec<u8>,
    /// None if rules can't name it.
    pub(super) name: Option<Name>,
    /// Where the question ends.
    end: usize,
}

impl Query {
    /// Parses a message with one question; None for anything else.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let flags = word(bytes, 2)?;
        let plain = flags & (RESPONSE | OPCODE) == 0 && word(bytes, 4)? == 1;
        let (name, end) = read_name(bytes, HEADER)?;
        // Type and class.
        let end = end + 4;
        (plain && end <= bytes.len()).then(|| Self {
            bytes: bytes.to_vec(),
            name: Name::from_text(&name),
            end,
        })
    }

    /// Returns the message's identification as the guest set it.
    pub(super) fn id(&self) -> u16 {
        word(&self.bytes, 0).unwrap_or_default()
    }

    /// Returns the message with another identification.
    pub(super) fn with_id(&self, id: u16) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        set_id(&mut bytes, id);
        bytes
    }

    /// Returns a response with the question and an error code only.
    pub(super) fn fail(&self, code: Code) -> Vec<u8> {
        let flags = word(&self.bytes, 2).unwrap_or_default();
        let flags = RESPONSE | (flags & RECURSION_DESIRED) | RECURSION_AVAILABLE | code as u16;
        let mut bytes = Vec::with_capacity(self.end);
        bytes.extend(self.id().to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend(self.bytes.get(HEADER..self.end).unwrap_or_default());
        bytes
    }

    /// Whether `response` answers this query as sent under `id`.
    pub(super) fn is_answered_by(&self, response: &[u8], id: u16) -> bool {
        let same_question = || {
            let asked = self.bytes.get(HEADER..self.end)?;
            Some(response.get(HEADER..self.end)?.eq_ignore_ascii_case(asked))
        };
        word(response, 0) == Some(id)
            && word(response, 2).is_some_and(|flags| flags & RESPONSE != 0)
            && word(response, 4) == Some(1)
            && same_question() == Some(true)
    }

    /// Returns the addresses that a response gives for the name, directly or through aliases, each
    /// with its TTL.
    pub(super) fn addresses(&self, response: &[u8]) -> Vec<(Ipv4Addr, Duration)> {
        let mut found = Vec::new();
        let Some(name) = &self.name else {
            return found;
        };
        let mut name = name.to_string();
        let mut position = self.end;
        for _ in 0..word(response, 6).unwrap_or_default() {
            let Some(record) = Record::read(response, position) else {
                break;
            };
            position = record.end;
            if !record.name.eq_ignore_ascii_case(&name) || record.class != CLASS_INTERNET {
                continue;
            }
            let data = response.get(record.data..record.end);
            match (record.kind, data) {
                (TYPE_A, Some(&[a, b, c, d])) => {
                    found.push((Ipv4Addr::new(a, b, c, d), record.ttl));
                }
                // Resolvers send the aliases in the order of the chain.
                (TYPE_CNAME, _) => match read_name(response, record.data) {
                    Some((target, _)) => name = target,
                    None => break,
                },
                _ => {}
            }
        }
        found
    }
}

/// Sets a message's identification.
pub(super) fn set_id(message: &mut [u8], id: u16) {
    if let Some(place) = message.get_mut(..2) {
        place.copy_from_slice(&id.to_be_bytes());
    }
}

/// A resource record.
struct Record {
    name: String,
    kind: u16,
    class: u16,
    ttl: Duration,
    /// Offsets of the data's beginning and end.
    data: usize,
    end: usize,
}

impl Record {
    fn read(message: &[u8], position: usize) -> Option<Self> {
        let (name, at) = read_name(message, position)?;
        let kind = word(message, at)?;
        let class = word(message, at + 2)?;
        let ttl = (u32::from(word(message, at + 4)?) << 16) | u32::from(word(message, at + 6)?);
        let length = word(message, at + 8)?;
        let data = at + 10;
        let end = data + usize::from(length);
        (end <= message.len()).then_some(Self {
            name,
            kind,
            class,
            ttl: Duration::from_secs(ttl.into()),
            data,
            end,
        })
    }
}

/// Reads two bytes in network order. `at` is a sum of a few lengths of at most 64 KiB each, so it
/// can't overflow.
fn word(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at + 2)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

/// Reads the name at a position; returns it and the offset after it. Bytes that can't occur in a
/// rule's name become U+FFFD, which can't either.
fn read_name(message: &[u8], position: usize) -> Option<(String, usize)> {
    /// The two high bits that make a length a pointer.
    const POINTER: u8 = 0xc0;
    const MAX: usize = 255;
    let mut name = String::new();
    let (mut at, mut lowest) = (position, position);
    let mut end = None;
    loop {
        let length = *message.get(at)?;
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=63 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                if !name.is_empty() {
                    name.push('.');
                }
                let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'.';
                name.extend(label.iter().map(|&byte| {
                    if plain(byte) {
                        char::from(byte)
                    } else {
                        '\u{fffd}'
                    }
                }));
                if name.len() > MAX * 3 {
                    return None;
                }
                at += 1 + usize::from(length);
            }
            POINTER.. => {
                let target = word(message, at)? & !(u16::from(POINTER) << 8);
                end.get_or_insert(at + 2);
                at = usize::from(target);
                if at >= lowest {
                    return None;
                }
                lowest = at;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A query for a name's addresses.
    fn query(name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        bytes.extend(name);
        bytes.extend([0, 0, 1, 0, 1]);
        bytes
    }

    /// The response to it, with records of (owner, type, data).
    fn response(query: &[u8], records: &[(&[u8], u16, &[u8])]) -> Vec<u8> {
        let mut bytes = query.to_vec();
        bytes[2] = 0x81;
        bytes[7] = records.len() as u8;
        for (owner, kind, data) in records {
            bytes.extend(*owner);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1, 0, 0, 1, 0]);
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(*data);
        }
        bytes
    }

    #[test]
    fn a_question_and_its_answer_are_parsed() {
        let bytes = query(b"\x01A\x07example");
        let query = Query::parse(&bytes).unwrap();
        assert_eq!(query.name, Name::from_text("a.example"));
        assert_eq!(query.id(), 0xabcd);

        // The question's name by pointer, an alias, the alias's address, and another name's
        // address.
        let bytes = response(
            &bytes,
            &[
                (b"\xc0\x0c", 5, b"\x01b\xc0\x0e"),
                (b"\x01b\xc0\x0e", 1, &[1, 2, 3, 4]),
                (b"\x01c\xc0\x0e", 1, &[6, 6, 6, 6]),
                (b"\x01b\xc0\x0e", 1, &[1, 2, 3]),
            ],
        );
        assert!(query.is_answered_by(&bytes, 0xabcd));
        assert!(!query.is_answered_by(&bytes, 0xabce));
        assert_eq!(
            query.addresses(&bytes),
            [([1, 2, 3, 4].into(), Duration::from_secs(256))]
        );
        let mut renamed = bytes.clone();
        set_id(&mut renamed, 7);
        assert!(query.is_answered_by(&renamed, 7));
        renamed[13] = b'z';
        assert!(!query.is_answered_by(&renamed, 7));
        assert!(!query.is_answered_by(&query.with_id(7), 7));
    }

    #[test]
    fn an_error_repeats_the_question() {
        let mut bytes = query(b"\x01a");
        let question = bytes.len();
        bytes.extend(b"additional records");
        let query = Query::parse(&bytes).unwrap();
        let refused = query.fail(Code::Refused);
        assert_eq!(refused[..4], [0xab, 0xcd, 0x81, 0x85]);
        assert_eq!(refused[12..], bytes[12..question]);
    }

    #[test]
    fn a_malformed_question_is_none() {
        let good = query(b"\x01a");
        for length in 0..good.len() {
            assert_eq!(Query::parse(&good[..length]), None);
        }
        for (at, value) in [(2, 0x81), (2, 0x08), (5, 0), (5, 2), (12, 0x40), (12, 0xff)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Query::parse(&bad), None, "{at}");
        }
        // A pointer to itself, and forwards.
        assert_eq!(Query::parse(&query(b"\xc0\x0c")), None);
        assert_eq!(Query::parse(&query(b"\xc0\x0e\x01a")), None);
        let odd = Query::parse(&query(b"\x03a.b")).unwrap();
        assert_eq!(odd.name, None);
    }

    proptest! {
        #[test]
        fn arbitrary_messages_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Query::parse(&bytes);
            let asked = Query::parse(&query(b"\x01a")).unwrap();
            let mut answer = asked.with_id(1);
            answer[2] = 0x80;
            answer[7] = 255;
            answer.extend(bytes);
            prop_assert!(asked.is_answered_by(&answer, 1));
            let _ = asked.addresses(&answer);
        }
    }
}
