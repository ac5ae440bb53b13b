//! Conversions to narrower integers, by what makes them right. Plain casts that may lose
//! something do not pass clippy in this crate.

/// A length or an index in memory. Where an address has fewer bits, what has none becomes the
/// greatest, which no slice has.
#[expect(clippy::cast_possible_truncation, reason = "compared before")]
#[inline]
pub(crate) const fn in_memory(number: u64) -> usize {
    if usize::BITS < u64::BITS && number > usize::MAX as u64 {
        usize::MAX
    } else {
        number as usize
    }
}

/// The lowest 8 bits of a field that is stored in parts.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the rest is stored elsewhere"
)]
#[inline]
pub(crate) fn low8(number: impl Into<u64>) -> u8 {
    number.into() as u8
}

/// The lowest 32 bits of a field that is stored in parts.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the rest is stored elsewhere"
)]
#[inline]
pub(crate) fn low32(number: u64) -> u32 {
    number as u32
}

/// A number that is bounded by a name, a list or a block, in 8 bits. A greater one, which there is
/// not, would become the greatest.
#[inline]
pub(crate) fn saturate8(number: impl TryInto<u8>) -> u8 {
    number.try_into().unwrap_or(u8::MAX)
}

/// As [`saturate8`], in 16 bits.
#[inline]
pub(crate) fn saturate16(number: impl TryInto<u16>) -> u16 {
    number.try_into().unwrap_or(u16::MAX)
}

/// As [`saturate8`], in 32 bits: an inode, a block, or how many there are.
#[inline]
pub(crate) fn saturate32(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}
