//! Conversions to narrower integers, named by what makes them correct. In the format crates clippy
//! rejects plain casts that may lose bits.

/// Converts a length or an index in memory. Where an address has fewer bits, a number that does not
/// fit becomes the greatest one, which no slice has as its length.
#[expect(clippy::cast_possible_truncation, reason = "compared before")]
#[inline]
pub const fn in_memory(number: u64) -> usize {
    if usize::BITS < u64::BITS && number > usize::MAX as u64 {
        usize::MAX
    } else {
        number as usize
    }
}

/// Returns the lowest 8 bits of a field that is stored in parts.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the rest is stored elsewhere"
)]
#[inline]
pub fn low8(number: impl Into<u64>) -> u8 {
    number.into() as u8
}

/// Returns the lowest 16 bits of a field that is stored in parts, or of a checksum.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the rest is stored elsewhere"
)]
#[inline]
pub fn low16(number: impl Into<u64>) -> u16 {
    number.into() as u16
}

/// Returns the lowest 32 bits of a field that is stored in parts.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the rest is stored elsewhere"
)]
#[inline]
pub fn low32(number: u64) -> u32 {
    number as u32
}

/// Converts a number that is bounded by a name, a list or a block to 8 bits. A greater number,
/// which does not occur, would become the greatest.
#[inline]
pub fn saturate8(number: impl TryInto<u8>) -> u8 {
    number.try_into().unwrap_or(u8::MAX)
}

/// Does the same as [`saturate8`] with 16 bits.
#[inline]
pub fn saturate16(number: impl TryInto<u16>) -> u16 {
    number.try_into().unwrap_or(u16::MAX)
}

/// Does the same as [`saturate8`] with 32 bits: for blocks of a file, inodes and groups, and their
/// counts.
#[inline]
pub fn saturate32(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}
