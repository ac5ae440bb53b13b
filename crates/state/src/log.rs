//! The log of a detached sandbox: its first command's output, kept in the sandbox's directory. Of a
//! long output, only the last part is kept.
//!
//! ```text
//! sandboxes/<id>/output.log   records, the newest last
//! sandboxes/<id>/output.old   the records before, once output.log has reached its limit
//! ```
//!
//! A record is a head of 16 bytes, little endian, and the bytes written:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | 1 for stdout, 2 for stderr, 3 for a gap |
//! | 4 | the number of bytes |
//! | 8 | the time: nanoseconds since 1970-01-01 UTC |
//!
//! A gap stands for output that could not be written, for want of room as a rule; its bytes are its length, 8
//! of them. It is written as soon as there is room for it, in front of what comes next.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use micabox_error::Error;
use micabox_ground::lock;

use crate::{Directory, Found};

const FILE: &str = "output.log";
const OLD: &str = "output.old";

/// Size in bytes from which on a file is replaced by a new one; there are two.
const FILL: u64 = 8 << 20;

/// Bytes of a record's head.
const HEAD: usize = 16;

/// Most bytes of one record: more than any single read.
const RECORD_MAX: u32 = 1 << 20;

/// The kind of a record that is a gap.
const GAP: u32 = 3;

/// One of a command's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    /// stdout, or the terminal.
    Stdout = 1,
    /// stderr.
    Stderr = 2,
}

/// A piece of a command's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The output.
    pub stream: LogStream,
    /// When it was written, since 1970-01-01 UTC.
    pub at: Duration,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How much output is missing in its place, of both streams: there was no room for it in the store. Such a
    /// record has no bytes.
    pub missing: u64,
}

/// Writes a sandbox's log.
#[derive(Debug)]
pub struct LogWriter {
    directory: PathBuf,
    state: Mutex<Writing>,
}

#[derive(Debug, Default)]
struct Writing {
    /// The newest file and its length.
    newest: Option<(File, u64)>,
    /// Bytes of output that could not be written since the last record.
    missing: u64,
}

impl LogWriter {
    /// The log is made with the first record, or by [`LogWriter::begin`].
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            state: Mutex::default(),
        }
    }

    /// Makes the log, if there is none.
    ///
    /// # Errors
    /// Those of the file.
    pub fn begin(&self) -> io::Result<()> {
        lock(&self.state).newest(&self.directory).map(drop)
    }

    /// Appends bytes with the current time. What can't be written is counted, and noted later.
    pub fn write(&self, stream: LogStream, bytes: &[u8]) {
        let mut state = lock(&self.state);
        for bytes in bytes.chunks(RECORD_MAX as usize) {
            let appended = state
                .note_gap(&self.directory)
                .and_then(|()| state.append(&self.directory, stream as u32, bytes));
            if appended.is_err() {
                state.missing = state.missing.saturating_add(bytes.len() as u64);
            }
        }
    }

    /// Notes what is missing at the end, if there is room by now.
    ///
    /// # Errors
    /// Those of the file: the log then ends too early without saying so.
    pub fn finish(&self) -> io::Result<()> {
        lock(&self.state).note_gap(&self.directory)
    }
}

impl Writing {
    fn newest(&mut self, directory: &Path) -> io::Result<&mut (File, u64)> {
        let newest = match self.newest.take() {
            Some(newest) => newest,
            None => {
                let mut options = File::options();
                let options = options.append(true).create(true).mode(0o600);
                let file = options.open(directory.join(FILE))?;
                let length = file.metadata()?.len();
                (file, length)
            }
        };
        Ok(self.newest.insert(newest))
    }

    fn note_gap(&mut self, directory: &Path) -> io::Result<()> {
        if self.missing > 0 {
            self.append(directory, GAP, &self.missing.to_le_bytes())?;
            self.missing = 0;
        }
        Ok(())
    }

    fn append(&mut self, directory: &Path, kind: u32, bytes: &[u8]) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = now.unwrap_or_default().as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        let mut record = Vec::with_capacity(HEAD + bytes.len());
        record.extend_from_slice(&kind.to_le_bytes());
        record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        record.extend_from_slice(&nanos.to_le_bytes());
        record.extend_from_slice(bytes);
        if self.newest(directory)?.1 >= FILL {
            fs::rename(directory.join(FILE), directory.join(OLD))?;
            self.newest = None;
        }
        let (file, length) = self.newest(directory)?;
        // In one write, so that a reader sees at most the last record cut short.
        if let Err(error) = file.write_all(&record) {
            // A part may be there, and the next record has to follow whole ones.
            file.set_len(*length)?;
            return Err(error);
        }
        *length += record.len() as u64;
        Ok(())
    }
}

/// Reads a sandbox's log from its beginning.
#[derive(Debug)]
pub struct LogReader {
    sandboxes: Directory,
    found: Found,
    /// The files to read, in reverse order, and the offset in each.
    files: Vec<(File, u64)>,
}

impl LogReader {
    /// Opens the log of the sandbox with this ID; None if it has none, because a client read its output all along.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`]; [`Error::State`].
    pub fn open(sandboxes: &Directory, id: &str) -> Result<Option<Self>, Error> {
        let found = sandboxes.find(id)?;
        let open = |name| match File::open(found.path.join(name)) {
            Ok(file) => Ok(Some((file, 0))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::State {
                what: "opening",
                path: found.path.join(name),
                source,
            }),
        };
        // The older one last: if the files are rotated meanwhile, a part is missing, but nothing is
        // duplicated.
        let files = [open(FILE)?, open(OLD)?];
        let mut files: Vec<(File, u64)> = files.into_iter().flatten().collect();
        let is_same = |a: &File, b: &File| -> io::Result<bool> {
            let (a, b) = (a.metadata()?, b.metadata()?);
            Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
        };
        if let [(newest, _), (old, _)] = files.as_slice()
            && is_same(newest, old).unwrap_or(false)
        {
            files.pop();
        }
        Ok((!files.is_empty()).then_some(Self {
            sandboxes: sandboxes.clone(),
            found,
            files,
        }))
    }

    /// Reads the next record; None at the end. While the sandbox runs, more may follow.
    ///
    /// # Errors
    /// [`Error::State`] if the log can't be read or is malformed.
    pub fn next_record(&mut self) -> Result<Option<LogRecord>, Error> {
        loop {
            let Some((file, at)) = self.files.last_mut() else {
                return Ok(None);
            };
            let read = read_record(file, *at).map_err(|source| Error::State {
                what: "reading",
                path: self.found.path.join(FILE),
                source,
            })?;
            if let Some((record, length)) = read {
                *at += length;
                return Ok(Some(record));
            }
            if self.files.len() > 1 {
                self.files.pop();
            } else if !self.move_on() {
                return Ok(None);
            }
        }
    }

    /// Switches to a newer file, if the one that was read to its end is not the newest.
    fn move_on(&mut self) -> bool {
        let newer = File::open(self.found.path.join(FILE)).ok().filter(|newer| {
            let identity = |file: &File| file.metadata().ok().map(|it| (it.dev(), it.ino()));
            let read = self.files.last().and_then(|(file, _)| identity(file));
            identity(newer) != read
        });
        // Records appended to the old file before it was renamed are read first.
        let is_newer = newer.is_some();
        if let Some(newer) = newer {
            self.files.insert(0, (newer, 0));
        }
        is_newer
    }

    /// Returns whether the log may grow.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn is_live(&self) -> Result<bool, Error> {
        match self.sandboxes.find(&self.found.record.id) {
            Ok(found) => Ok(found.record.status.is_live()),
            Err(Error::NoSuchSandbox(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Reads the record at offset `at`, and returns its length in the file too; None if there is none, or if it is
/// incomplete.
fn read_record(file: &mut File, at: u64) -> io::Result<Option<(LogRecord, u64)>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not a mica log");
    let length = file.metadata()?.len();
    let mut head = [0; HEAD];
    if length < at.saturating_add(HEAD as u64) {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut head)?;
    let (stream, rest) = head.split_first_chunk().ok_or_else(wrong)?;
    let (count, rest) = rest.split_first_chunk().ok_or_else(wrong)?;
    let nanos = rest.first_chunk().ok_or_else(wrong)?;
    let kind = u32::from_le_bytes(*stream);
    let stream = match kind {
        1 => LogStream::Stdout,
        2 | GAP => LogStream::Stderr,
        _ => return Err(wrong()),
    };
    let count = u32::from_le_bytes(*count);
    if count > RECORD_MAX {
        return Err(wrong());
    }
    if length < at + HEAD as u64 + u64::from(count) {
        return Ok(None);
    }
    let mut bytes = vec![0; count as usize];
    file.read_exact(&mut bytes)?;
    let mut missing = 0;
    if kind == GAP {
        missing = u64::from_le_bytes(*bytes.first_chunk().ok_or_else(wrong)?);
        bytes.clear();
    }
    let record = LogRecord {
        stream,
        at: Duration::from_nanos(u64::from_le_bytes(*nanos)),
        bytes,
        missing,
    };
    Ok(Some((record, HEAD as u64 + u64::from(count))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_keeps_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let writer = LogWriter::new(directory.path());
        let count = 3 * FILL / (1 << 18);
        for number in 0..count {
            let mut bytes = vec![0; 1 << 18];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            writer.write(LogStream::Stderr, &bytes);
        }
        let size = |name| fs::metadata(directory.path().join(name)).unwrap().len();
        assert!(size(FILE) + size(OLD) < 2 * FILL + (1 << 20));
        let mut read = Vec::new();
        for name in [OLD, FILE] {
            let mut file = File::open(directory.path().join(name)).unwrap();
            let mut at = 0;
            while let Some((record, length)) = read_record(&mut file, at).unwrap() {
                at += length;
                assert_eq!(record.stream, LogStream::Stderr);
                read.push(u64::from_le_bytes(*record.bytes.first_chunk().unwrap()));
            }
        }
        let kept = read.len() as u64;
        assert!(kept >= FILL >> 18, "{kept}");
        assert_eq!(read, (count - kept..count).collect::<Vec<_>>());
        // An incomplete record does not count.
        let path = directory.path().join("torn");
        let whole = fs::read(directory.path().join(FILE)).unwrap();
        for length in [0, 15, 16, 1000] {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(
                read_record(&mut File::open(&path).unwrap(), 0).unwrap(),
                None
            );
        }
        fs::write(&path, [7; 100]).unwrap();
        read_record(&mut File::open(&path).unwrap(), 0).unwrap_err();
    }

    #[test]
    fn a_log_says_how_much_there_was_no_room_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let records = || {
            let mut file = File::open(&path).unwrap();
            let (mut at, mut found) = (0, Vec::new());
            while let Some((record, length)) = read_record(&mut file, at).unwrap() {
                at += length;
                let text = String::from_utf8(record.bytes).unwrap();
                found.push((record.missing, text));
            }
            assert_eq!(
                at,
                file.metadata().unwrap().len(),
                "a part of a record is left"
            );
            found
        };
        let writer = LogWriter::new(directory.path());
        writer.write(LogStream::Stdout, b"before");
        // A file that can't grow stands for a full filesystem.
        let full = || {
            let file = File::options().write(true).open("/dev/full").unwrap();
            let length = fs::metadata(&path).unwrap().len();
            lock(&writer.state).newest = Some((file, length));
        };
        full();
        writer.write(LogStream::Stdout, b"lost");
        full();
        writer.write(LogStream::Stderr, b"too");
        writer.finish().unwrap_err();
        let kept = (0, "before".to_owned());
        assert_eq!(records(), std::slice::from_ref(&kept));
        lock(&writer.state).newest = None;
        writer.write(LogStream::Stdout, b"after");
        let known = [kept, (7, String::new()), (0, "after".to_owned())];
        assert_eq!(records(), known);
        // Also if nothing comes any more.
        full();
        writer.write(LogStream::Stdout, b"end");
        lock(&writer.state).newest = None;
        writer.finish().unwrap();
        writer.finish().unwrap();
        assert_eq!(records(), [&known[..], &[(3, String::new())]].concat());
    }
}
