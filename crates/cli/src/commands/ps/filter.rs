//! `--filter` of `mica ps`, with Docker's keys and meanings.
//!
//! Values of one key are alternatives, but for labels, which must all be there. All keys must match.

use micabox::{Error, Record, Status};
use micabox_image::Reference;

use micabox_program::failure::Failure;

/// The states that `status=` knows, with Docker's that no sandbox is ever in.
const STATES: [&str; 9] = [
    "created",
    "starting",
    "running",
    "paused",
    "exited",
    "dead",
    "restarting",
    "removing",
    "stopped",
];

/// What sandboxes must match.
#[derive(Debug, Default)]
pub struct Filters(Vec<(Key, String)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Id,
    Label,
    Status,
    Ancestor,
    Exited,
    Before,
    Since,
    Publish,
}

const KEYS: [(&str, Key); 9] = [
    ("name", Key::Name),
    ("id", Key::Id),
    ("label", Key::Label),
    ("status", Key::Status),
    ("ancestor", Key::Ancestor),
    ("exited", Key::Exited),
    ("before", Key::Before),
    ("since", Key::Since),
    ("publish", Key::Publish),
];

impl Filters {
    /// Parses the flag's values.
    pub fn parse(texts: &[String]) -> Result<Self, Failure> {
        let parse = |text: &String| {
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| Failure::new(format!("--filter {text}: expected KEY=VALUE")))?;
            let known = KEYS.iter().find(|(key, _)| *key == name);
            let (_, key) = known.ok_or_else(|| {
                let all: Vec<_> = KEYS.iter().map(|(key, _)| *key).collect();
                Failure::new(format!("--filter {text}: no such key"))
                    .hint(format!("there are {}", all.join(", ")))
            })?;
            check(*key, value).map_err(|why| Failure::new(format!("--filter {text}: {why}")))?;
            Ok((*key, value.to_owned()))
        };
        texts.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether sandboxes that do not run are asked for.
    pub fn are_about_the_end(&self) -> bool {
        let mut keys = self.0.iter();
        keys.any(|(key, _)| matches!(key, Key::Status | Key::Exited))
    }

    /// Returns those of `records`, all of them in the order of their creation, that match.
    pub fn choose<'a>(&self, records: &'a [Record]) -> Result<Vec<&'a Record>, Failure> {
        let mut wanted = Vec::new();
        for (key, value) in &self.0 {
            wanted.push((*key, Wanted::new(*key, value, records)?));
        }
        let matches = |at: usize, record: &Record| {
            let mut keys = wanted.iter().map(|(key, _)| *key);
            keys.all(|key| {
                let mut values = wanted.iter().filter(|(other, _)| *other == key);
                let matches = |(_, wanted): &(Key, Wanted)| wanted.matches(at, record);
                match key {
                    Key::Label => values.all(matches),
                    _ => values.any(matches),
                }
            })
        };
        let records = records.iter().enumerate();
        Ok(records
            .filter(|(at, record)| matches(*at, record))
            .map(|(_, record)| record)
            .collect())
    }
}

/// Checks a value that can be wrong whatever sandboxes there are.
fn check(key: Key, value: &str) -> Result<(), String> {
    match key {
        Key::Name => {
            let plain = value.strip_prefix('^').unwrap_or(value);
            let plain = plain.strip_prefix('/').unwrap_or(plain);
            let plain = plain.strip_suffix('$').unwrap_or(plain);
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            if plain.bytes().all(is_plain) {
                Ok(())
            } else {
                Err("expected a part of a name, with ^ before or $ after it".into())
            }
        }
        Key::Status if !STATES.contains(&value) => {
            Err(format!("no such status; there are {}", STATES.join(", ")))
        }
        Key::Exited => value
            .parse::<i32>()
            .map(drop)
            .map_err(|_| "expected an exit code".into()),
        Key::Publish => port(value)
            .map(drop)
            .ok_or("expected PORT[/tcp|/udp]".into()),
        _ => Ok(()),
    }
}

fn port(text: &str) -> Option<(u16, &str)> {
    let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let port = port.parse().ok()?;
    matches!(protocol, "tcp" | "udp").then_some((port, protocol))
}

/// A value to compare with.
#[derive(Debug)]
enum Wanted {
    Name {
        part: String,
        is_start: bool,
        is_end: bool,
    },
    Id(String),
    Label(String, Option<String>),
    Status(String),
    Ancestor {
        text: String,
        reference: Option<String>,
    },
    Exited(i32),
    /// Sandboxes before this place in the list.
    Before(usize),
    /// Sandboxes after this place in the list.
    Since(usize),
    Publish(u16, String),
}

impl Wanted {
    fn new(key: Key, value: &str, records: &[Record]) -> Result<Self, Failure> {
        Ok(match key {
            Key::Name => {
                let part = value.trim_start_matches('^').trim_start_matches('/');
                Self::Name {
                    part: part.trim_end_matches('$').to_owned(),
                    is_start: value.starts_with('^'),
                    is_end: value.ends_with('$'),
                }
            }
            Key::Id => Self::Id(value.to_owned()),
            Key::Label => match value.split_once('=') {
                Some((name, value)) => Self::Label(name.to_owned(), Some(value.to_owned())),
                None => Self::Label(value.to_owned(), None),
            },
            Key::Status => Self::Status(value.to_owned()),
            Key::Ancestor => Self::Ancestor {
                text: value.to_owned(),
                reference: value.parse().ok().map(|name: Reference| name.to_string()),
            },
            Key::Exited => Self::Exited(value.parse().unwrap_or_default()),
            Key::Before => Self::Before(place(value, records)?),
            Key::Since => Self::Since(place(value, records)?),
            Key::Publish => {
                let (port, protocol) = port(value).unwrap_or_default();
                Self::Publish(port, protocol.to_owned())
            }
        })
    }

    fn matches(&self, at: usize, record: &Record) -> bool {
        match self {
            Self::Name {
                part,
                is_start,
                is_end,
            } => match (is_start, is_end) {
                (true, true) => record.name == *part,
                (true, false) => record.name.starts_with(part.as_str()),
                (false, true) => record.name.ends_with(part.as_str()),
                (false, false) => record.name.contains(part.as_str()),
            },
            Self::Id(start) => record.id.starts_with(start.as_str()),
            Self::Label(name, value) => record
                .spec
                .labels
                .get(name)
                .is_some_and(|has| value.as_ref().is_none_or(|value| has == value)),
            Self::Status(state) => super::state(&record.status) == state,
            Self::Ancestor { text, reference } => is_of(record, text, reference.as_deref()),
            Self::Exited(wanted) => {
                matches!(&record.status, Status::Exited { code, .. } if code == wanted)
            }
            Self::Before(place) => at < *place,
            Self::Since(place) => at > *place,
            Self::Publish(port, protocol) => {
                record.status.is_live()
                    && record.published.iter().any(|published| {
                        [published.guest, published.host.port()].contains(port)
                            && published.protocol.to_string() == *protocol
                    })
            }
        }
    }
}

/// Returns whether a sandbox is made from the image with this reference or digest, or the beginning
/// of one.
fn is_of(record: &Record, text: &str, reference: Option<&str>) -> bool {
    const FEW: usize = 6;
    let micabox::BaseName::Image(image) = &record.base else {
        return record.base.to_string() == text;
    };
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    let is_digest = digits.len() >= FEW && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let has = image.digest.strip_prefix("sha256:").unwrap_or_default();
    if is_digest && has.starts_with(digits) {
        return true;
    }
    let has = image.reference.as_deref();
    has.is_some_and(|has| has == text || Some(has) == reference)
}

/// Finds a sandbox by its name, its ID, or the beginning of its ID.
fn place(name: &str, records: &[Record]) -> Result<usize, Failure> {
    let exact = records
        .iter()
        .position(|record| record.name == name || record.id == name);
    let start = |record: &Record| !name.is_empty() && record.id.starts_with(name);
    exact
        .or_else(|| records.iter().position(start))
        .ok_or_else(|| Error::NoSuchSandbox(name.to_owned()).into())
}
