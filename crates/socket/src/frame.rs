//! Frames: a length of four bytes, little endian, and as many bytes.

use std::fmt;
use std::io::{self, Read, Write};

/// Bytes of a frame's length.
const LENGTH: usize = 4;

/// A frame is longer than its receiver allows: so many bytes, as its length says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong(pub usize);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a frame of {} bytes", self.0)
    }
}

impl std::error::Error for TooLong {}

fn length(bytes: [u8; LENGTH], most: usize) -> Result<usize, TooLong> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > most {
        return Err(TooLong(length));
    }
    Ok(length)
}

/// Writes one frame.
///
/// # Errors
/// Those of write(2); [`io::ErrorKind::InvalidInput`] for 4 GiB and more.
pub fn write_frame(output: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len());
    let length = length.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(body)
}

/// Reads one frame of at most `most` bytes. None if the stream ends before it. Allocates as much as is there to read.
///
/// # Errors
/// Those of read(2); [`io::ErrorKind::UnexpectedEof`] if the stream ends in it; [`io::ErrorKind::InvalidData`] with
/// [`TooLong`], before its bytes are read.
pub fn read_frame(input: &mut impl Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut read = |count: usize| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        input.by_ref().take(count as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let head = read(LENGTH)?;
    if head.is_empty() {
        return Ok(None);
    }
    let head = head.try_into().map_err(|_| io::ErrorKind::UnexpectedEof)?;
    let length =
        length(head, most).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let body = read(length)?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(body))
}

/// The frames of a stream that arrives in pieces of any size.
///
/// Holds at most one incomplete frame and one pushed piece.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that have been taken.
    taken: usize,
}

impl Frames {
    /// Adds the stream's next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next frame, without its length; none until all of it has been pushed.
    ///
    /// # Errors
    /// If it has more than `most` bytes, as soon as its length says so. No other frame can be taken then.
    pub fn take(&mut self, most: usize) -> Result<Option<&[u8]>, TooLong> {
        let pending = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((head, rest)) = pending.split_first_chunk() else {
            return Ok(None);
        };
        let frame = rest.get(..length(*head, most)?);
        if let Some(frame) = frame {
            self.taken += LENGTH + frame.len();
        }
        Ok(frame)
    }

    /// Takes bytes that are no frame, such as a preamble; none until all of them have been pushed.
    pub fn take_bytes<const N: usize>(&mut self) -> Option<&[u8; N]> {
        let bytes = self.buffer.get(self.taken..)?.first_chunk()?;
        self.taken += N;
        Some(bytes)
    }

    /// Whether the stream may end here: every byte has been taken.
    pub fn is_empty(&self) -> bool {
        self.taken == self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_and_malformed_ones_are_refused() {
        let mut bytes = Vec::new();
        for body in ["one", ""] {
            write_frame(&mut bytes, body.as_bytes()).unwrap();
        }
        let mut input = &*bytes;
        assert_eq!(read_frame(&mut input, 3).unwrap(), Some(b"one".to_vec()));
        assert_eq!(read_frame(&mut input, 0).unwrap(), Some(Vec::new()));
        assert_eq!(read_frame(&mut input, 0).unwrap(), None);
        for (mut bytes, kind) in [
            (&bytes[..2], io::ErrorKind::UnexpectedEof),
            (&bytes[..5], io::ErrorKind::UnexpectedEof),
            (b"\x04\0\0\0four", io::ErrorKind::InvalidData),
            (b"\xff\xff\xff\xff", io::ErrorKind::InvalidData),
        ] {
            assert_eq!(read_frame(&mut bytes, 3).unwrap_err().kind(), kind);
        }
    }

    #[test]
    fn frames_come_out_as_they_went_in_whatever_the_pieces() {
        let mut bytes = b"hello".to_vec();
        let bodies = [vec![1; 300], Vec::new(), vec![2; 7]];
        for body in &bodies {
            write_frame(&mut bytes, body).unwrap();
        }
        for size in [1, 3, 128, bytes.len()] {
            let (mut frames, mut bodies) = (Frames::default(), bodies.iter());
            let mut is_greeted = false;
            for piece in bytes.chunks(size) {
                frames.push(piece);
                if !is_greeted {
                    let Some(hello) = frames.take_bytes() else {
                        continue;
                    };
                    assert_eq!(hello, b"hello");
                    is_greeted = true;
                }
                while let Some(frame) = frames.take(300).unwrap() {
                    assert_eq!(Some(frame), bodies.next().map(Vec::as_slice));
                }
            }
            assert!(frames.is_empty() && bodies.next().is_none());
        }
        let mut frames = Frames::default();
        frames.push(&8_u32.to_le_bytes());
        assert_eq!(frames.take(7), Err(TooLong(8)));
        assert_eq!(frames.take(8), Ok(None));
    }
}
