//! SHA-256 digests as the OCI image specification writes them: `sha256:` and 64
//! lower-case hexadecimal digits.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::Digest as _;

use crate::printable;

/// Why a string is not a digest that can be verified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// There is no colon between algorithm and value.
    #[error("`{0}` is not a digest: expected `sha256:` and 64 hexadecimal digits")]
    NoAlgorithm(String),
    /// An algorithm that OCI registers but no published image uses, or an unknown one.
    #[error("digest `{0}` uses an algorithm other than sha256, which cannot be verified here")]
    Algorithm(String),
    /// The value isn't 64 lower-case hexadecimal digits.
    #[error("`{0}` is not a digest: expected 64 lower-case hexadecimal digits after `sha256:`")]
    Value(String),
}

/// The SHA-256 of a blob, a manifest or an uncompressed layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns the 32 raw bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns 64 lower-case hexadecimal digits, without the algorithm.
    pub fn hex(&self) -> String {
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
        digits.collect()
    }

    /// Parses `hex`, 64 lower-case hexadecimal digits without the algorithm.
    ///
    /// # Errors
    ///
    /// [`ParseError::Value`].
    pub fn from_hex(hex: &str) -> Result<Self, ParseError> {
        let digits = hex.as_bytes();
        let error = || ParseError::Value(printable(hex));
        if digits.len() != 64 {
            return Err(error());
        }
        let mut value = [0; 32];
        for (byte, pair) in value.iter_mut().zip(digits.chunks_exact(2)) {
            for digit in pair {
                let nibble = match digit {
                    b'0'..=b'9' => digit - b'0',
                    // The specification allows no upper-case digits: one digest, one spelling.
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return Err(error()),
                };
                *byte = *byte << 4 | nibble;
            }
        }
        Ok(Self(value))
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl FromStr for Digest {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.split_once(':') {
            None => Err(ParseError::NoAlgorithm(printable(text))),
            Some(("sha256", hex)) => {
                Self::from_hex(hex).map_err(|_| ParseError::Value(printable(text)))
            }
            Some(_) => Err(ParseError::Algorithm(printable(text))),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        f.write_str(&self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not `&str`: a reader-backed deserializer can only hand out owned strings.
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Computes a [`Digest`] over bytes that arrive piece by piece.
#[derive(Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Creates a hasher that has seen no bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// Passes bytes on to a writer and computes their digest.
pub struct HashingWriter<W> {
    inner: W,
    hasher: Hasher,
    size: u64,
}

impl<W> HashingWriter<W> {
    /// Wraps `inner`, with no bytes written yet.
    pub fn new(inner: W) -> Self {
        Self {
            inner,
            hasher: Hasher::new(),
            size: 0,
        }
    }

    /// Returns the writer, and the digest and number of the bytes that it took.
    pub fn finish(self) -> (W, Digest, u64) {
        (self.inner, self.hasher.finish(), self.size)
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn text_form_round_trips() {
        let digest = Digest::of(b"");
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.parse(), Ok(digest));
        assert_eq!(Digest::from_hex(&digest.hex()), Ok(digest));
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
    }

    #[test]
    fn only_the_canonical_spelling_parses() {
        for bad in [
            "",
            "sha256",
            "sha256:",
            "sha256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855",
            "sha256:../../../../etc/passwd",
            "sha512:cf83e1357eefb8bd",
            &EMPTY[..70],
            &format!("{EMPTY}0"),
            &format!("{}é", &EMPTY[..69]),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
