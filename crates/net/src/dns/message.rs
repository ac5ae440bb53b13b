//! The parts of DNS messages (RFC 1035, section 4) that the proxy needs.
//!
//! Both guest and resolver are untrusted. Every position is checked, and a compressed name may only
//! point backwards, so that parsing terminates.

use std::net::Ipv4Addr;
use std::time::Duration;

use micabox_spec::network::Name;

const HEADER: usize = 12;
/// In the second word of the header: the message is a response.
const RESPONSE: u16 = 1 << 15;
const OPCODE: u16 = 0xf << 11;
const AUTHORITATIVE: u16 = 1 << 10;
const TRUNCATED: u16 = 1 << 9;
const RECURSION_DESIRED: u16 = 1 << 8;
const RECURSION_AVAILABLE: u16 = 1 << 7;
const CODE: u16 = 0xf;

const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const CLASS_INTERNET: u16 = 1;

/// A response code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(u16);

impl Code {
    const NO_ERROR: Self = Self(0);
    /// The guest's message is no query.
    const FORMAT_ERROR: Self = Self(1);
    /// No resolver answered, or there is no room for the question.
    pub(super) const SERVER_FAILURE: Self = Self(2);
    const NO_SUCH_NAME: Self = Self(3);
    /// The guest wants something else than an answer.
    const NOT_IMPLEMENTED: Self = Self(4);
    /// The policy denies the name.
    pub(super) const REFUSED: Self = Self(5);
}

/// What a resolver's message is to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It answers the query: there is such a name, or there is none.
    Answer,
    /// The resolver can't answer or doesn't want to; another one might. With the code for the guest,
    /// if the message itself is not fit to be passed on.
    Failure(Option<Code>),
    /// It is no response to the query.
    Foreign,
}

/// Whether a response is only the beginning of an answer, which is then to be had by TCP.
pub(super) fn is_truncated(response: &[u8]) -> bool {
    word(response, 2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// Returns the response to a guest's message that [`Query::parse`] does not take; None for what is no
/// query at all.
pub(super) fn refuse_malformed(bytes: &[u8]) -> Option<Vec<u8>> {
    let flags = word(bytes, 2).filter(|flags| flags & RESPONSE == 0)?;
    let id = bytes.get(..2).filter(|_| bytes.len() >= HEADER)?;
    let code = match flags & OPCODE {
        0 => Code::FORMAT_ERROR,
        _ => Code::NOT_IMPLEMENTED,
    };
    let flags = RESPONSE | (flags & (OPCODE | RECURSION_DESIRED)) | RECURSION_AVAILABLE | code.0;
    let mut response = id.to_vec();
    response.extend(flags.to_be_bytes());
    response.resize(HEADER, 0);
    Some(response)
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
        let flags = RESPONSE | (flags & RECURSION_DESIRED) | RECURSION_AVAILABLE | code.0;
        let mut bytes = Vec::with_capacity(self.end);
        bytes.extend(self.id().to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend(self.bytes.get(HEADER..self.end).unwrap_or_default());
        bytes
    }

    /// Judges a message that came for this query, which was sent under `id`. Failures are those after
    /// which the C library asks its next resolver.
    pub(super) fn judge(&self, response: &[u8], id: u16) -> Verdict {
        if word(response, 0) != Some(id) {
            return Verdict::Foreign;
        }
        let count = |at| word(response, at).unwrap_or_default();
        let (flags, questions, answers) = (count(2), count(4), count(6));
        if response.len() < HEADER {
            return Verdict::Failure(Some(Code::SERVER_FAILURE));
        }
        if flags & RESPONSE == 0 {
            return Verdict::Foreign;
        }
        let code = Code(flags & CODE);
        let is_definite = matches!(code, Code::NO_ERROR | Code::NO_SUCH_NAME);
        if questions == 0 && !is_definite {
            return Verdict::Failure(Some(code));
        }
        let asked = self.bytes.get(HEADER..self.end).unwrap_or_default();
        let question = response.get(HEADER..self.end);
        if questions != 1 || !question.is_some_and(|question| question.eq_ignore_ascii_case(asked))
        {
            return Verdict::Foreign;
        }
        if !is_definite {
            return Verdict::Failure(None);
        }
        if flags & TRUNCATED != 0 {
            return Verdict::Answer;
        }
        if !self.has_all_records(response) {
            return Verdict::Failure(Some(Code::SERVER_FAILURE));
        }
        // A server that is not responsible for the name, and does not ask those that are.
        let is_lame = code == Code::NO_ERROR
            && answers == 0
            && count(10) == 0
            && flags & (AUTHORITATIVE | RECURSION_AVAILABLE) == 0;
        if is_lame {
            Verdict::Failure(None)
        } else {
            Verdict::Answer
        }
    }

    /// Whether a response has all records that its header announces.
    fn has_all_records(&self, response: &[u8]) -> bool {
        let counts = [6, 8, 10].map(|at| u32::from(word(response, at).unwrap_or_default()));
        let mut records = 0..counts.iter().sum::<u32>();
        let end = records.try_fold(self.end, |at, _| {
            Record::read(response, at).map(|record| record.end)
        });
        end.is_some()
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
        assert_eq!(query.judge(&bytes, 0xabcd), Verdict::Answer);
        assert_eq!(query.judge(&bytes, 0xabce), Verdict::Foreign);
        assert_eq!(
            query.addresses(&bytes),
            [([1, 2, 3, 4].into(), Duration::from_secs(256))]
        );
        let mut renamed = bytes.clone();
        set_id(&mut renamed, 7);
        assert_eq!(query.judge(&renamed, 7), Verdict::Answer);
        renamed[13] = b'z';
        assert_eq!(query.judge(&renamed, 7), Verdict::Foreign);
        assert_eq!(query.judge(&query.with_id(7), 7), Verdict::Foreign);
    }

    #[test]
    fn a_failure_is_what_another_resolver_may_do_better() {
        let bytes = query(b"\x01a");
        let query = Query::parse(&bytes).unwrap();
        let judge = |bytes: &[u8]| query.judge(bytes, 0xabcd);
        let good = response(&bytes, &[(b"\xc0\x0c", 1, &[1, 2, 3, 4])]);
        // Codes: no error and no such name are answers.
        for code in 0..16 {
            let mut bytes = good.clone();
            bytes[3] |= code;
            let is_answer = matches!(code, 0 | 3);
            assert_eq!(judge(&bytes) == Verdict::Answer, is_answer, "{code}");
            if !is_answer {
                assert_eq!(judge(&bytes), Verdict::Failure(None), "{code}");
                // Some servers don't repeat the question.
                bytes.truncate(HEADER);
                bytes[4..].fill(0);
                let code = Code(code.into());
                assert_eq!(judge(&bytes), Verdict::Failure(Some(code)));
            }
        }
        // A cut message, unless it says so.
        let broken = Verdict::Failure(Some(Code::SERVER_FAILURE));
        for length in query.end..good.len() {
            let mut cut = good[..length].to_vec();
            assert_eq!(judge(&cut), broken, "{length}");
            cut[2] |= 2;
            assert_eq!(judge(&cut), Verdict::Answer, "{length}");
            assert!(is_truncated(&cut) && !is_truncated(&good));
        }
        assert_eq!(judge(&good[..2]), broken);
        assert_eq!(judge(&good[..1]), Verdict::Foreign);
        // A referral to nowhere; the same from a server that is responsible for the name.
        let mut lame = response(&bytes, &[]);
        assert_eq!(judge(&lame), Verdict::Failure(None));
        lame[2] |= 4;
        assert_eq!(judge(&lame), Verdict::Answer);
    }

    #[test]
    fn what_is_no_question_is_refused() {
        let mut bytes = query(b"\x01a");
        bytes[5] = 2;
        let refusal = [0xab, 0xcd, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(refuse_malformed(&bytes).unwrap(), refusal);
        bytes[2] |= 0x28;
        assert_eq!(refuse_malformed(&bytes).unwrap()[2..4], [0xa9, 0x84]);
        bytes[2] = 0x81;
        assert_eq!(refuse_malformed(&bytes), None);
        assert_eq!(refuse_malformed(&bytes[..11]), None);
    }

    #[test]
    fn an_error_repeats_the_question() {
        let mut bytes = query(b"\x01a");
        let question = bytes.len();
        bytes.extend(b"additional records");
        let query = Query::parse(&bytes).unwrap();
        let refused = query.fail(Code::REFUSED);
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
            let _ = asked.judge(&answer, 1);
            let _ = asked.addresses(&answer);
        }
    }
}
