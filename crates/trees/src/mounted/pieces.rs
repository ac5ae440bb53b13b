//! A stream that ends with its result: pieces, each a frame; an empty frame; and a
//! [record](micabox_parsers::records) with the result.

use std::io::{self, Read, Write};

use micabox_parsers::{Fault, records};
use micabox_socket::{read_frame, write_frame};

/// Most bytes of a piece.
const PIECE: usize = 64 << 10;

/// Either end of such a stream.
#[derive(Debug)]
pub struct Pieces<S> {
    stream: S,
    /// The piece to be written, or the one that was read last.
    piece: Vec<u8>,
    /// Bytes at the front of the piece that its reader has.
    taken: usize,
    has_ended: bool,
}

impl<S> Pieces<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            piece: Vec::new(),
            taken: 0,
            has_ended: false,
        }
    }
}

impl<S: Write> Pieces<S> {
    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        write_frame(&mut self.stream, &self.piece)?;
        self.piece.clear();
        Ok(())
    }

    /// Ends the stream.
    pub fn finish(mut self, result: &Result<(), Fault>) -> io::Result<()> {
        self.send()?;
        write_frame(&mut self.stream, &[])?;
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
        if self.taken == self.piece.len() {
            let piece = read_frame(&mut self.stream, PIECE)?;
            self.piece = piece.ok_or(io::ErrorKind::UnexpectedEof)?;
            self.taken = 0;
        }
        if self.piece.is_empty() {
            let result = records::read::<Result<(), Fault>>(&mut self.stream)?;
            result
                .ok_or(io::ErrorKind::UnexpectedEof)?
                .map_err(|fault| io::Error::other(fault.to_string()))?;
            self.has_ended = true;
            return Ok(0);
        }
        let count = self
            .piece
            .get(self.taken..)
            .unwrap_or_default()
            .read(buffer)?;
        self.taken += count;
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
