//! A stream that ends with its result: pieces, each after its length (`u32`, little
//! endian); the length 0; and a [record](crate::jailed::records) with the result.

use std::io::{self, Read, Write};

use crate::jailed::{Fault, records};

/// Bytes of a piece.
const PIECE: usize = 64 << 10;

/// Either end of such a stream.
#[derive(Debug)]
pub(crate) struct Pieces<S> {
    stream: S,
    /// To be written.
    piece: Vec<u8>,
    /// Bytes of the piece that is being read.
    left: usize,
    has_ended: bool,
}

impl<S> Pieces<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            piece: Vec::new(),
            left: 0,
            has_ended: false,
        }
    }
}

impl<S: Write> Pieces<S> {
    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let length = u32::try_from(self.piece.len()).unwrap_or(u32::MAX);
        self.stream.write_all(&length.to_le_bytes())?;
        self.stream.write_all(&self.piece)?;
        self.piece.clear();
        Ok(())
    }

    /// Ends the stream.
    pub(crate) fn finish(mut self, result: &Result<(), Fault>) -> io::Result<()> {
        self.send()?;
        self.stream.write_all(&[0; 4])?;
        records::write(&mut self.stream, result)
    }
}

impl<S: Write> Write for Pieces<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE.saturating_sub(self.piece.len());
        let some = bytes.get(..room).unwrap_or(bytes);
        self.piece.extend_from_slice(some);
        if self.piece.len() >= PIECE {
            self.send()?;
        }
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Read> Read for Pieces<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.has_ended {
            return Ok(0);
        }
        if self.left == 0 {
            let mut length = [0; 4];
            self.stream.read_exact(&mut length)?;
            self.left = u32::from_le_bytes(length) as usize;
        }
        if self.left == 0 {
            let result = records::read::<Result<(), Fault>>(&mut self.stream)?;
            result
                .ok_or(io::ErrorKind::UnexpectedEof)?
                .map_err(|fault| io::Error::other(fault.to_string()))?;
            self.has_ended = true;
            return Ok(0);
        }
        let most = buffer.len().min(self.left);
        let count = self
            .stream
            .read(buffer.get_mut(..most).unwrap_or_default())?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_cut_off_or_says_so_is_not_whole() {
        let body: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
        let sent = |result: Result<(), Fault>| {
            let mut bytes = Vec::new();
            let mut pieces = Pieces::new(&mut bytes);
            pieces.write_all(&body).unwrap();
            pieces.finish(&result).unwrap();
            bytes
        };
        let read = |bytes: &[u8]| {
            let mut read = Vec::new();
            Pieces::new(bytes).read_to_end(&mut read).map(|_| read)
        };
        let whole = sent(Ok(()));
        assert_eq!(read(&whole).unwrap(), body);
        for cut in [0, 3, 100, whole.len() - 1] {
            read(&whole[..cut]).unwrap_err();
        }
        let failed = read(&sent(Err(Fault::Disk("damaged".into())))).unwrap_err();
        assert!(failed.to_string().contains("damaged"));
    }
}
