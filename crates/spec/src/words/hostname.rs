//! Host names.

use std::str::FromStr;

use super::WordError;

/// Most characters of a name.
const MAX: usize = 64;

/// A sandbox's host name, as Linux and resolvers accept it: up to 64 letters, digits, `-`, `_` and `.`, no part beginning
/// or ending with `-` (RFC 1123, and underscores).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hostname(pub String);

impl FromStr for Hostname {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_label = |label: &str| {
            let is_edge = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
            let bytes = label.as_bytes();
            is_edge(bytes.first()) && is_edge(bytes.last()) && label.bytes().all(is_plain)
        };
        if text.len() <= MAX && text.split('.').all(is_label) {
            return Ok(Self(text.to_owned()));
        }
        Err("expected up to 64 letters, digits, `-`, `_` and `.`, no part beginning or ending with `-`".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_of_letters_and_digits() {
        for good in ["a", "db-1.example.com", "under_score", &"x".repeat(64)] {
            assert_eq!(good.parse(), Ok(Hostname(good.to_owned())));
        }
        for bad in [
            "",
            "bad host!",
            "-a",
            "a-",
            ".a",
            "a..b",
            "ä",
            "a\n",
            &"x".repeat(65),
        ] {
            bad.parse::<Hostname>().unwrap_err();
        }
    }
}
