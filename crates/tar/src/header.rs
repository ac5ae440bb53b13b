//! The 512-byte header block: v7, POSIX ustar, star and GNU.

use micabox_file::Segment;

use crate::Error;

/// Size of a block in bytes; everything in an archive is padded to a multiple.
pub(super) const BLOCK: usize = 512;

/// A header block with a valid checksum.
pub(super) struct Header<'a>(&'a [u8; BLOCK]);

/// The meaning of the bytes after the link name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// The bytes are unused.
    V7,
    Ustar,
    /// ustar by its magic, but with a shorter prefix, followed by times.
    Star,
    Gnu,
}

impl<'a> Header<'a> {
    /// Parses a block after verifying its checksum. Sums of signed bytes, as old archivers made
    /// them, are accepted.
    pub(super) fn parse(block: &'a [u8; BLOCK]) -> Result<Self, Error> {
        let mut unsigned = 0i64;
        let mut signed = 0i64;
        for (at, &byte) in block.iter().enumerate() {
            // The checksum field itself counts as spaces.
            let byte = if (148..156).contains(&at) { b' ' } else { byte };
            unsigned += i64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        let header = Self(block);
        let stored = octal(header.field::<148, 8>()).ok_or(Error::Checksum)?;
        if stored == unsigned || stored == signed {
            Ok(header)
        } else {
            Err(Error::Checksum)
        }
    }

    /// Returns a field by offset and length, both checked at compile time to lie inside the block.
    fn field<const OFFSET: usize, const LENGTH: usize>(&self) -> &'a [u8] {
        const { assert!(OFFSET + LENGTH <= BLOCK) };
        &self.0[OFFSET..OFFSET + LENGTH]
    }

    fn dialect(&self) -> Dialect {
        match (self.field::<257, 8>(), self.field::<508, 4>()) {
            (b"ustar  \0", _) => Dialect::Gnu,
            ([b'u', b's', b't', b'a', b'r', 0, ..], b"tar\0") => Dialect::Star,
            ([b'u', b's', b't', b'a', b'r', 0, ..], _) => Dialect::Ustar,
            _ => Dialect::V7,
        }
    }

    pub(super) fn is_gnu(&self) -> bool {
        self.dialect() == Dialect::Gnu
    }

    pub(super) fn typeflag(&self) -> u8 {
        self.0[156]
    }

    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(self.field::<0, 100>());
        let prefix = match self.dialect() {
            Dialect::Ustar => text(self.field::<345, 155>()),
            Dialect::Star => text(self.field::<345, 131>()),
            Dialect::Gnu | Dialect::V7 => b"",
        };
        if prefix.is_empty() {
            name.to_vec()
        } else {
            [prefix, b"/", name].concat()
        }
    }

    pub(super) fn target(&self) -> &'a [u8] {
        text(self.field::<157, 100>())
    }

    pub(super) fn mode(&self) -> Result<u16, Error> {
        let mode = number(self.field::<100, 8>()).ok_or(Error::Number("mode"))?;
        // Some archivers store the whole of `st_mode`; only the type flag determines the type.
        Ok((mode & 0o7777) as u16)
    }

    pub(super) fn uid(&self) -> Result<i64, Error> {
        number(self.field::<108, 8>()).ok_or(Error::Number("owner"))
    }

    pub(super) fn gid(&self) -> Result<i64, Error> {
        number(self.field::<116, 8>()).ok_or(Error::Number("group"))
    }

    pub(super) fn size(&self) -> Result<u64, Error> {
        number(self.field::<124, 12>())
            .and_then(|size| u64::try_from(size).ok())
            .ok_or(Error::Number("size"))
    }

    pub(super) fn mtime(&self) -> Result<i64, Error> {
        number(self.field::<136, 12>()).ok_or(Error::Number("modification time"))
    }

    /// Returns the major and minor number.
    pub(super) fn device(&self) -> Result<(u32, u32), Error> {
        let part = |field| {
            number(field)
                .and_then(|part| u32::try_from(part).ok())
                .ok_or(Error::Number("device number"))
        };
        match self.dialect() {
            Dialect::V7 => Ok((0, 0)),
            _ => Ok((part(self.field::<329, 8>())?, part(self.field::<337, 8>())?)),
        }
    }

    /// Returns the four segments in the header of an old GNU sparse file, whether blocks with more
    /// segments follow, and the file's size including holes.
    pub(super) fn sparse(&self) -> Result<(Vec<Segment>, bool, u64), Error> {
        let size = number(self.field::<483, 12>())
            .and_then(|size| u64::try_from(size).ok())
            .ok_or(Error::Number("size of the sparse file"))?;
        let more = self.0[482] != 0;
        Ok((sparse_segments(self.field::<386, 96>())?, more, size))
    }
}

/// Parses segments of 12 bytes offset and 12 bytes length each, up to the first empty one.
pub(super) fn sparse_segments(fields: &[u8]) -> Result<Vec<Segment>, Error> {
    let mut segments = Vec::new();
    for pair in fields.chunks_exact(24) {
        if pair[0] == 0 {
            break;
        }
        let part = |field| {
            number(field)
                .and_then(|part| u64::try_from(part).ok())
                .ok_or(Error::Sparse("a position is not a number"))
        };
        segments.push(Segment {
            offset: part(&pair[..12])?,
            length: part(&pair[12..])?,
        });
    }
    Ok(segments)
}

/// Returns the field up to the first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Parses a number in octal digits or, with the first bit set, in base 256, two's complement.
fn number(field: &[u8]) -> Option<i64> {
    match field {
        [first, rest @ ..] if first & 0x80 != 0 => {
            // Bit 6 of the first byte is the sign, the rest of it belongs to the value.
            let negative = first & 0x40 != 0;
            let first = i64::from(first & 0x3f) - if negative { 0x40 } else { 0 };
            rest.iter().try_fold(first, |value, &byte| {
                value.checked_mul(256)?.checked_add(i64::from(byte))
            })
        }
        _ => octal(field),
    }
}

/// Parses octal digits surrounded by any number of spaces and NULs; no digits mean zero.
fn octal(field: &[u8]) -> Option<i64> {
    let blank = |byte: &u8| matches!(byte, b' ' | 0);
    let from = field
        .iter()
        .position(|byte| !blank(byte))
        .unwrap_or(field.len());
    let digits = &field[from..];
    let digits = &digits[..digits.iter().position(blank).unwrap_or(digits.len())];
    digits.iter().try_fold(0i64, |value, &digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_octal_and_base_256() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"77777777777\0"), Some(0o77777777777));
        assert_eq!(number(b"77777777777"), Some(0o77777777777));
        assert_eq!(number(b"8"), None);
        assert_eq!(number(b"-1"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(1 << 33));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        assert_eq!(
            number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"),
            Some(-2)
        );
        assert_eq!(
            number(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"),
            Some(i64::MAX)
        );
        assert_eq!(number(b"\x80\0\0\0\x80\0\0\0\0\0\0\0"), None);
        assert_eq!(
            number(b"\xff\xff\xff\xff\x80\0\0\0\0\0\0\0"),
            Some(i64::MIN)
        );
    }
}
