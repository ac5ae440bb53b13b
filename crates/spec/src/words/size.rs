//! Sizes, as Docker reads them: a number with b, k, m, g or t, which may have a fraction.

use std::str::FromStr;

use super::WordError;

/// A size in bytes, of 1 byte to 1024 TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// A size of memory in MiB, rounded up, of at least 64 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub u32);

impl FromStr for Size {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        /// More than any machine's memory, and representable exactly.
        const MOST: f64 = (1_u64 << 50) as f64;
        match bytes(text)?.ceil() {
            bytes if (1.0..=MOST).contains(&bytes) => Ok(Self(bytes as u64)),
            _ => Err(format!("`{text}`: expected a size of 1 byte to 1024t").into()),
        }
    }
}

impl FromStr for Memory {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match mebibytes(text)? {
            mib @ 64.0..=4_194_304.0 => Ok(Self(mib as u32)),
            0.0..64.0 => Err("a machine needs at least 64m".into()),
            _ => Err("more than any machine has".into()),
        }
    }
}

/// Returns whether a size is nothing, in whatever unit.
#[must_use]
pub fn is_zero(text: &str) -> bool {
    bytes(text) == Ok(0.0)
}

/// Reads a size, rounded up to whole MiB.
pub(super) fn mebibytes(text: &str) -> Result<f64, WordError> {
    Ok((bytes(text)? / f64::from(1 << 20)).ceil())
}

fn bytes(text: &str) -> Result<f64, WordError> {
    let lower = text.trim().to_ascii_lowercase();
    let (number, shift) = split(&lower)?;
    scaled(number, shift)
}

/// Splits a size, in lower case, into its number and the power of 2 of its unit.
pub(super) fn split(lower: &str) -> Result<(&str, u32), WordError> {
    let unit_at = lower
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(lower.len());
    let (number, unit) = lower.split_at(unit_at);
    let shift = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("expected a number with b, k, m, g or t".into()),
    };
    Ok((number, shift))
}

/// Returns a number, which may have a fraction, of units.
pub(super) fn scaled(number: &str, shift: u32) -> Result<f64, WordError> {
    let number: f64 = number.parse().map_err(|_| "expected a number")?;
    let half = f64::from(1_u32 << (shift / 2));
    Ok(number * half * f64::from(1_u32 << (shift - shift / 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_rounded_up_to_mib() {
        for (text, mib) in [
            ("512m", Some(512)),
            ("1G", Some(1024)),
            ("1.5g", Some(1536)),
            ("134217729", Some(129)),
            ("262144k", Some(256)),
            ("2gib", Some(2048)),
            ("6m", None),
            ("", None),
            ("m", None),
            ("-1g", None),
            ("1x", None),
            ("99999t", None),
            ("1e9g", None),
        ] {
            assert_eq!(text.parse().ok(), mib.map(Memory), "{text}");
        }
        assert!(is_zero("0") && is_zero("0m") && !is_zero("1") && !is_zero(""));
    }
}
