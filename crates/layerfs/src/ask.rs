//! How a process asks for pieces of sparse files, over a stream socket. All numbers are 32 bits, little-endian.
//!
//! ```text
//! question: file, first piece, number of pieces      0 pieces: the file itself
//! answer to 0: descriptors, 2 or 0: the sparse file, and one that has which pieces are here; a frame: why there are none
//! answer:   file, first piece that was asked for, first piece that is here, number of these, bytes of the reason
//!           no pieces are here: the reason
//! ```
//!
//! Questions may be asked without waiting, and are answered in any order. A file is opened before its pieces are asked for.
//! A client that looks into the second file needs no question about what is here: it has a bit for each piece, from the
//! lowest one of each byte, which is set once the piece is in its place.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use micabox_ground::{chain, lock};
use micabox_socket::{read_frame, receive_descriptors, send_all, send_descriptors, write_frame};

use crate::Source;
use crate::parts::Parts;
use crate::pieces::{MOST, Pieces, window};

/// Most bytes of a reason.
const MOST_REASON: usize = 4096;

/// Questions of one client that are under way at most; more wait in its socket.
const AT_ONCE: u32 = 32;

/// How long a client may take to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client's side.
#[derive(Debug)]
pub struct Asker(UnixStream);

/// A file as a client has it.
#[derive(Debug)]
pub struct Opened {
    /// The sparse file, for reading. Where a piece is not here it has zeros.
    pub file: Arc<File>,
    /// Its size in bytes.
    pub size: u64,
    present: File,
    /// Which pieces were here when it was looked for last.
    here: Pieces,
}

impl Opened {
    /// Returns the pieces that are here around one, as far as they have the same 2 MiB; an empty range if it is not.
    ///
    /// # Errors
    ///
    /// Those of reading which are.
    pub fn run(&mut self, piece: u32) -> io::Result<Range<u32>> {
        if !self.here.has(piece) {
            self.here.look(&self.present, &window(piece))?;
        }
        Ok(self.here.run(piece))
    }

    /// As [`Opened::run`], and up to `most` pieces behind these 2 MiB as far as they are here as well.
    ///
    /// # Errors
    ///
    /// As [`Opened::run`].
    pub fn run_on(&mut self, piece: u32, most: u32) -> io::Result<Range<u32>> {
        let run = self.run(piece)?;
        if run.is_empty() || run.end < window(piece).end {
            return Ok(run);
        }
        let behind = run.end..run.end.saturating_add(most).min(self.here.count());
        self.here.look(&self.present, &behind)?;
        let gap = self.here.gaps(behind.clone()).next();
        Ok(run.start..gap.map_or(behind.end, |gap| gap.start))
    }

    /// Returns all runs of pieces that are here.
    ///
    /// # Errors
    ///
    /// As [`Opened::run`].
    pub fn runs(&mut self) -> io::Result<Vec<Range<u32>>> {
        let all = 0..self.here.count();
        self.here.look(&self.present, &all)?;
        Ok(self.here.runs(all).collect())
    }
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The file's number.
    pub file: u32,
    /// The first piece that was asked for.
    pub asked: u32,
    /// The pieces that are here, that one among them; or why it is not.
    pub here: Result<Range<u32>, String>,
}

impl Asker {
    /// Asks over a connection, of which the server's greeting was received.
    pub fn new(connection: UnixStream) -> Self {
        Self(connection)
    }

    /// Opens a file, by its number. No answer may be awaited.
    ///
    /// # Errors
    ///
    /// Those of the connection; of the kind [`io::ErrorKind::NotFound`], with the server's reason, if there is no file.
    pub fn open(&self, number: u32) -> io::Result<Opened> {
        self.ask(number, &(0..0))?;
        let files = receive_descriptors(&self.0)?;
        let reason = read_frame(&mut &self.0, MOST_REASON)?;
        let reason = reason.ok_or(io::ErrorKind::UnexpectedEof)?;
        let Ok([file, present]) = <[_; 2]>::try_from(files) else {
            let reason = String::from_utf8_lossy(&reason).into_owned();
            return Err(io::Error::new(io::ErrorKind::NotFound, reason));
        };
        let (file, present) = (File::from(file), File::from(present));
        let size = file.metadata()?.len();
        Ok(Opened {
            file: Arc::new(file),
            size,
            present,
            here: Pieces::none(size),
        })
    }

    /// Asks for pieces: 1 to [`MOST`].
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn ask(&self, file: u32, pieces: &Range<u32>) -> io::Result<()> {
        let count = pieces.end.saturating_sub(pieces.start);
        send_all(&self.0, &numbers([file, pieces.start, count]), &[])
    }

    /// Waits for an answer, of any question.
    ///
    /// # Errors
    ///
    /// Those of the connection; [`io::ErrorKind::UnexpectedEof`] if the server has ended.
    pub fn answer(&self) -> io::Result<Answer> {
        let [file, asked, first, count, bytes] = read_numbers(&self.0)?;
        if count > 0 {
            let end = first.checked_add(count);
            let here = first..end.ok_or(io::ErrorKind::InvalidData)?;
            if bytes != 0 || !here.contains(&asked) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let here = Ok(here);
            return Ok(Answer { file, asked, here });
        }
        let mut reason = vec![0; (bytes as usize).min(MOST_REASON)];
        (&self.0).read_exact(&mut reason)?;
        let here = Err(String::from_utf8_lossy(&reason).into_owned());
        Ok(Answer { file, asked, here })
    }

    /// Brings pieces, and waits until all of them are here.
    ///
    /// # Errors
    ///
    /// Those of the connection; the server's reason, if one can't be had.
    pub fn bring(&self, file: u32, pieces: Range<u32>) -> io::Result<()> {
        let mut next = pieces.start;
        while next < pieces.end {
            let end = pieces.end.min(window(next).end);
            self.ask(file, &(next..end))?;
            next = self.answer()?.here.map_err(io::Error::other)?.end;
        }
        Ok(())
    }

    /// Returns the connection, to be waited for.
    pub fn connection(&self) -> &UnixStream {
        &self.0
    }
}

/// A client, as the server has it.
struct Client<S> {
    parts: Arc<Parts<S>>,
    connection: UnixStream,
    /// An answer is written by one thread at a time.
    writing: Mutex<()>,
    under_way: Mutex<u32>,
    answered: Condvar,
}

/// Answers a client's questions until it has gone, in threads.
///
/// # Errors
///
/// Those of the connection, and of what the client breaks of the protocol.
pub fn serve<S: Source + Send + Sync + 'static>(
    parts: &Arc<Parts<S>>,
    connection: UnixStream,
) -> io::Result<()> {
    connection.set_read_timeout(None)?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let client = Arc::new(Client {
        parts: Arc::clone(parts),
        connection,
        writing: Mutex::new(()),
        under_way: Mutex::new(0),
        answered: Condvar::new(),
    });
    loop {
        let [file, first, count] = match read_numbers(&client.connection) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        if count == 0 {
            client.open(file)?;
            continue;
        }
        let end = first.checked_add(count).filter(|_| count <= MOST);
        let pieces = first..end.ok_or(io::ErrorKind::InvalidData)?;
        client.wait_for_room();
        let its = Arc::clone(&client);
        let bring = move || {
            let here = its.parts.bring(file, &pieces);
            // A client that does not take its answers ends when its next question is read.
            let _ = its.answer(file, first, here);
            *lock(&its.under_way) -= 1;
            its.answered.notify_all();
        };
        std::thread::Builder::new()
            .name("bring".into())
            .spawn(bring)?;
    }
}

impl<S: Source> Client<S> {
    fn wait_for_room(&self) {
        let mut under_way = lock(&self.under_way);
        while *under_way >= AT_ONCE {
            under_way = lock::ignore_poison(self.answered.wait(under_way));
        }
        *under_way += 1;
    }

    fn open(&self, file: u32) -> io::Result<()> {
        let opened = self.parts.open(file);
        let mut frame = Vec::new();
        let _writing = lock(&self.writing);
        match &opened {
            Ok(part) => {
                write_frame(&mut frame, &[])?;
                send_descriptors(&self.connection, &part.readable().map(AsFd::as_fd))?;
            }
            Err(error) => {
                write_frame(&mut frame, &reason(error))?;
                send_descriptors(&self.connection, &[])?;
            }
        }
        send_all(&self.connection, &frame, &[])
    }

    fn answer(&self, file: u32, asked: u32, here: io::Result<Range<u32>>) -> io::Result<()> {
        let bytes = match here {
            Ok(here) => numbers([file, asked, here.start, here.end - here.start, 0]),
            Err(error) => {
                let reason = reason(&error);
                let mut bytes = numbers([file, asked, 0, 0, reason.len() as u32]);
                bytes.extend(reason);
                bytes
            }
        };
        let _writing = lock(&self.writing);
        let sent = send_all(&self.connection, &bytes, &[]);
        if sent.is_err() {
            // Half an answer is none.
            let _ = self.connection.shutdown(std::net::Shutdown::Both);
        }
        sent
    }
}

fn reason(error: &io::Error) -> Vec<u8> {
    let mut reason = chain(error).into_bytes();
    reason.truncate(MOST_REASON);
    reason
}

fn numbers<const N: usize>(numbers: [u32; N]) -> Vec<u8> {
    numbers.map(u32::to_le_bytes).concat()
}

fn read_numbers<const N: usize>(mut connection: &UnixStream) -> io::Result<[u32; N]> {
    let mut bytes = [[0; 4]; N];
    connection.read_exact(bytes.as_flattened_mut())?;
    Ok(bytes.map(u32::from_le_bytes))
}
