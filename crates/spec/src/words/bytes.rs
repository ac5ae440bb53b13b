//! Numbers of bytes, of files and filesystems.

use std::str::FromStr;

use super::WordError;
use super::size::{scaled, split};

/// A number of bytes, 0 to 2^64 - 1: with a unit or without. One with a fraction is rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        const EXPECTED: &str = "expected a number of bytes such as 512M or 8G";
        const TOO_MANY: &str = "that is more than 2^64 bytes";
        let lower = text.trim().to_ascii_lowercase();
        let (number, shift) = split(&lower).map_err(|_| EXPECTED)?;
        if !number.contains('.') {
            // Exact, where a fraction would have fewer digits.
            let number: u64 = number.parse().map_err(|_| EXPECTED)?;
            return match number.checked_mul(1 << shift) {
                Some(bytes) => Ok(Self(bytes)),
                None => Err(TOO_MANY.into()),
            };
        }
        let bytes = scaled(number, shift).map_err(|_| EXPECTED)?.ceil();
        if bytes < u64::MAX as f64 {
            Ok(Self(bytes as u64))
        } else {
            Err(TOO_MANY.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes_have_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("8G", 8 << 30),
            ("1tib", 1 << 40),
            ("1.5g", 3 << 29),
            ("0.1k", 103),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
        for text in [
            "",
            "G",
            "-1",
            "1X",
            ".",
            "1.5.g",
            "99999999999T",
            "99999999999.5T",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
