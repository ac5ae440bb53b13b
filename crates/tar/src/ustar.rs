//! The header block of a member that is written: POSIX ustar, without its prefix of names.

use std::ops::Range;

use crate::header::BLOCK;

pub(crate) const NAME: Range<usize> = 0..100;
pub(crate) const MODE: Range<usize> = 100..108;
pub(crate) const UID: Range<usize> = 108..116;
pub(crate) const GID: Range<usize> = 116..124;
pub(crate) const SIZE: Range<usize> = 124..136;
pub(crate) const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const TYPE: Range<usize> = 156..157;
pub(crate) const TARGET: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
pub(crate) const MAJOR: Range<usize> = 329..337;
pub(crate) const MINOR: Range<usize> = 337..345;

/// A header block, whose fields are zeros until they are set.
pub(crate) struct Ustar([u8; BLOCK]);

impl Ustar {
    pub(crate) fn new(typeflag: u8) -> Self {
        let mut header = Self([0; BLOCK]);
        header.set_text(TYPE, &[typeflag]);
        header.set_text(MAGIC, b"ustar\x0000");
        header
    }

    /// Sets as much of a text as fits.
    pub(crate) fn set_text(&mut self, field: Range<usize>, text: &[u8]) {
        for (place, &byte) in self.field(field).iter_mut().zip(text) {
            *place = byte;
        }
    }

    /// Sets a number: as many of its last octal digits as fit, and a NUL.
    pub(crate) fn set_number(&mut self, field: Range<usize>, mut number: u64) {
        let mut places = self.field(field).iter_mut().rev();
        if let Some(end) = places.next() {
            *end = 0;
        }
        for place in places {
            *place = b'0' + (number % 8) as u8;
            number /= 8;
        }
    }

    /// Returns the block, with its checksum.
    pub(crate) fn finish(mut self) -> [u8; BLOCK] {
        // The checksum's field itself counts as spaces.
        self.field(CHECKSUM).fill(b' ');
        let sum = self.0.iter().copied().map(u64::from).sum();
        self.set_number(CHECKSUM, sum);
        self.0
    }

    fn field(&mut self, field: Range<usize>) -> &mut [u8] {
        self.0.get_mut(field).unwrap_or_default()
    }
}
