//! Packets: a tag, a length, a body (RFC 9580, section 4.2).

use std::borrow::Cow;

pub(super) const SIGNATURE: u8 = 2;
pub(super) const ONE_PASS_SIGNATURE: u8 = 4;
pub(super) const PUBLIC_KEY: u8 = 6;
pub(super) const COMPRESSED: u8 = 8;
pub(super) const MARKER: u8 = 10;
pub(super) const LITERAL: u8 = 11;
pub(super) const USER_ID: u8 = 13;
pub(super) const PUBLIC_SUBKEY: u8 = 14;
pub(super) const USER_ATTRIBUTE: u8 = 17;
pub(super) const PADDING: u8 = 21;

const ENDS_EARLY: &str = "a packet ends early";

/// A packet.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    pub(super) tag: u8,
    /// In one piece, however many there are.
    pub(super) body: Cow<'a, [u8]>,
}

/// Reads packets one after the other, and nothing behind one that is malformed.
#[derive(Debug)]
pub(super) struct Packets<'a> {
    rest: Fields<'a>,
}

impl<'a> Packets<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: Fields::new(bytes),
        }
    }

    fn read(&mut self) -> Result<Packet<'a>, &'static str> {
        let header = self.rest.u8()?;
        if header & 0x80 == 0 {
            return Err("it is not made of packets");
        }
        if header & 0x40 != 0 {
            let tag = header & 0x3f;
            let body = self.body_of_new_format(tag)?;
            return Ok(Packet { tag, body });
        }
        let tag = (header >> 2) & 0xf;
        let length = match header & 3 {
            0 => usize::from(self.rest.u8()?),
            1 => usize::from(self.rest.u16()?),
            2 => self.rest.length()?,
            // All that follows: how GnuPG writes what it compresses.
            _ if has_pieces(tag) => self.rest.0.len(),
            _ => return Err("a packet has no length"),
        };
        let body = self.rest.take(length)?.into();
        Ok(Packet { tag, body })
    }

    fn body_of_new_format(&mut self, tag: u8) -> Result<Cow<'a, [u8]>, &'static str> {
        let mut pieces: Vec<u8> = Vec::new();
        loop {
            let first = self.rest.u8()?;
            let is_piece = (224..=254).contains(&first);
            let length = match first {
                224..=254 if has_pieces(tag) => 1 << (first & 0x1f),
                224..=254 => return Err("a packet has a length in pieces"),
                255 => self.rest.length()?,
                192..=223 => two_octets(first, self.rest.u8()?),
                _ => usize::from(first),
            };
            let piece = self.rest.take(length)?;
            if !is_piece && pieces.is_empty() {
                return Ok(piece.into());
            }
            // At most as long as what was read.
            pieces.extend_from_slice(piece);
            if !is_piece {
                return Ok(pieces.into());
            }
        }
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<Packet<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let packet = self.read();
        if packet.is_err() {
            self.rest = Fields::new(&[]);
        }
        Some(packet)
    }
}

/// Returns whether a packet holds data, whose length its writer may not know at first.
fn has_pieces(tag: u8) -> bool {
    matches!(tag, COMPRESSED | LITERAL)
}

/// Returns a length from 192 to 8,383.
pub(super) fn two_octets(first: u8, second: u8) -> usize {
    (usize::from(first) - 192) * 256 + usize::from(second) + 192
}

/// Fields of a packet, the next one first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns all that is left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, &'static str> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, &'static str> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_be_bytes)
    }

    fn length(&mut self) -> Result<usize, &'static str> {
        let length = self.u32()?;
        length.try_into().map_err(|_| ENDS_EARLY)
    }

    /// Returns a number without leading zeros (RFC 9580, section 3.2).
    pub(super) fn number(&mut self) -> Result<&'a [u8], &'static str> {
        let bits = self.u16()?;
        let bytes = self.take(usize::from(bits).div_ceil(8))?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Ok(bytes.get(zeros..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u8, Vec<u8>)>, &'static str> {
        let packet = |packet: Packet<'_>| (packet.tag, packet.body.into_owned());
        Packets::new(bytes).map(|read| read.map(packet)).collect()
    }

    #[test]
    fn lengths_of_every_form_are_read() {
        let body = vec![7; 300];
        let with = |header: &[u8], body: &[u8]| [header, body].concat();
        for (bytes, tag) in [
            (with(&[0xb9, 1, 44], &body), 14),
            (with(&[0xba, 0, 0, 1, 44], &body), 14),
            (with(&[0xce, 192, 108], &body), 14),
            (with(&[0xce, 255, 0, 0, 1, 44], &body), 14),
            // What is left.
            (with(&[0xa3], &body), 8),
            (with(&[0xaf], &body), 11),
        ] {
            assert_eq!(all(&bytes), Ok(vec![(tag, body.clone())]));
        }
        let pieces = [&[0xcb, 225][..], &[1, 2], &[224, 3], &[1, 4], &[0xca, 0]].concat();
        assert_eq!(all(&pieces), Ok(vec![(11, vec![1, 2, 3, 4]), (10, vec![])]));
    }

    #[test]
    fn malformed_packets_are_refused() {
        for (bytes, problem) in [
            (&[0x3d, 0][..], "it is not made of packets"),
            (&[0xcb], ENDS_EARLY),
            (&[0xcb, 5, 1], ENDS_EARLY),
            (&[0xcb, 255, 255, 255, 255, 255, 1], ENDS_EARLY),
            (&[0xcb, 254, 1], ENDS_EARLY),
            // A piece must be followed by another, at least an empty one.
            (&[0xcb, 224, 1], ENDS_EARLY),
            (&[0xc2, 224, 1, 0], "a packet has a length in pieces"),
            (&[0x8b, 1], "a packet has no length"),
        ] {
            assert_eq!(all(bytes), Err(problem), "{bytes:?}");
        }
    }
}
