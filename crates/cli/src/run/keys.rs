//! Detach keys: what a user presses to leave a command running.

use std::str::FromStr;

/// A sequence of keys, as the bytes that a terminal sends for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys(Vec<u8>);

/// Docker's default.
pub const DEFAULT: &str = "ctrl-p,ctrl-q";

impl Default for Keys {
    fn default() -> Self {
        Self(vec![0x10, 0x11])
    }
}

impl FromStr for Keys {
    type Err = String;

    /// Parses a list as Docker does: nothing for its default, characters, and `ctrl-` with a letter or one of `@[\]^_`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let key = |word: &str| {
            let (bytes, is_control) = match word.strip_prefix("ctrl-") {
                Some(key) => (key.as_bytes(), true),
                None => (word.as_bytes(), false),
            };
            match (bytes, is_control) {
                ([byte @ (b'a'..=b'z' | b'@' | b'['..=b'_')], true) => Ok(byte & 0x1f),
                ([byte], false) if byte.is_ascii() => Ok(*byte),
                _ => Err(format!("`{word}` is not a key, such as a or ctrl-a")),
            }
        };
        text.split(',').map(key).collect::<Result<_, _>>().map(Self)
    }
}

/// Finds the keys in input that arrives in pieces.
#[derive(Debug)]
pub struct Scanner {
    keys: Keys,
    /// The last bytes, if the keys may be going on.
    held: Vec<u8>,
}

impl Scanner {
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            held: Vec::new(),
        }
    }

    /// Appends to `out` what is not part of the keys. Returns whether the keys were pressed; what
    /// comes after them is dropped.
    pub fn pass(&mut self, input: &[u8], out: &mut Vec<u8>) -> bool {
        for &byte in input {
            self.held.push(byte);
            while !self.keys.0.starts_with(&self.held) {
                out.push(self.held.remove(0));
            }
            if self.held.len() == self.keys.0.len() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_as_docker_does() {
        assert_eq!(DEFAULT.parse(), Ok(Keys::default()));
        assert_eq!("".parse(), Ok(Keys::default()));
        assert_eq!("a,ctrl-z,ctrl-]".parse(), Ok(Keys(vec![b'a', 26, 0x1d])));
        for wrong in [",", "a,", "ctrl-", "ctrl-A", "ctrl-1", "shift-a", "\u{e9}"] {
            assert!(wrong.parse::<Keys>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn input_passes_until_the_keys_are_complete() {
        let keys = || Keys(b"aab".to_vec());
        for (pieces, passed, is_found) in [
            (&["aaab rest"][..], "a", true),
            (&["xa", "a", "b"], "x", true),
            (&["aac", "aa"], "aac", false),
            (&["ab"], "ab", false),
        ] {
            let mut scanner = Scanner::new(keys());
            let mut out = Vec::new();
            let found = pieces
                .iter()
                .any(|piece| scanner.pass(piece.as_bytes(), &mut out));
            assert_eq!((out.as_slice(), found), (passed.as_bytes(), is_found));
        }
    }
}
