//! What a worker reads in an archive or image, as bytes in a pipe. A worker may have been taken over by what it reads,
//! so that they are foreign bytes to the receiver as well.
//!
//! Each member is a record, its length (`u32`, little endian) first. A file's contents follow: an offset and a length
//! (`u64`) before each piece, and two zeros at the end.

use std::io::{Read, Write};

use micabox_file::Timestamp;
use micabox_tar::{Attributes, Kind, Member, Segment};
use serde::{Deserialize, Serialize};

use super::{BUFFER, KeepError};

/// Most bytes of a record: two paths and the attributes.
const RECORD: u32 = 1 << 20;

/// Largest size of a file, as the kernel has it.
const MAX_SIZE: u64 = i64::MAX as u64;

const NANOSECONDS: u32 = 1_000_000_000;

/// A member without a file's segments.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    path: Vec<u8>,
    kind: RecordKind,
    mode: u16,
    uid: u32,
    gid: u32,
    mtime: Timestamp,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Serialize, Deserialize)]
enum RecordKind {
    File(u64),
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    Directory,
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
}

impl From<&Member> for Record {
    fn from(member: &Member) -> Self {
        let Attributes {
            mode,
            uid,
            gid,
            mtime,
            ..
        } = member.attributes;
        Self {
            path: member.path.clone(),
            kind: match &member.kind {
                Kind::File { size, .. } => RecordKind::File(*size),
                Kind::HardLink(path) => RecordKind::HardLink(path.clone()),
                Kind::Symlink(target) => RecordKind::Symlink(target.clone()),
                Kind::Directory => RecordKind::Directory,
                Kind::CharDevice(major, minor) => RecordKind::CharDevice(*major, *minor),
                Kind::BlockDevice(major, minor) => RecordKind::BlockDevice(*major, *minor),
                Kind::Fifo => RecordKind::Fifo,
            },
            mode,
            uid,
            gid,
            mtime,
            xattrs: member.attributes.xattrs.clone(),
        }
    }
}

impl Record {
    /// Returns the member, if it can be one.
    fn member(self) -> Option<Member> {
        let kind = match self.kind {
            RecordKind::File(size) if size > MAX_SIZE => return None,
            RecordKind::File(size) => Kind::file(size),
            RecordKind::HardLink(path) => Kind::HardLink(path),
            RecordKind::Symlink(target) => Kind::Symlink(target),
            RecordKind::Directory => Kind::Directory,
            RecordKind::CharDevice(major, minor) => Kind::CharDevice(major, minor),
            RecordKind::BlockDevice(major, minor) => Kind::BlockDevice(major, minor),
            RecordKind::Fifo => Kind::Fifo,
        };
        let has_zero = self.path.contains(&0) || kind.target().contains(&0);
        if has_zero || self.mtime.nanos >= NANOSECONDS {
            return None;
        }
        let attributes = Attributes {
            mode: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            mtime: self.mtime,
            xattrs: self.xattrs,
        };
        Some(Member {
            path: self.path,
            kind,
            attributes,
        })
    }
}

/// Sends members.
pub(crate) struct Sender<W> {
    output: W,
    buffer: Vec<u8>,
}

impl<W: Write> Sender<W> {
    pub(crate) fn new(output: W) -> Self {
        let buffer = vec![0; BUFFER];
        Self { output, buffer }
    }

    pub(crate) fn into_inner(self) -> W {
        self.output
    }

    /// Sends a member, whose stored bytes are in `body`.
    pub(crate) fn add(&mut self, member: &Member, body: &mut dyn Read) -> Result<(), KeepError> {
        let record = postcard::to_allocvec(&Record::from(member)).map_err(std::io::Error::other)?;
        let length = u32::try_from(record.len()).ok();
        let length = length.filter(|length| *length <= RECORD);
        let length = length.ok_or_else(|| KeepError::TooMuch(member.path.clone()))?;
        self.output.write_all(&length.to_le_bytes())?;
        self.output.write_all(&record)?;
        let Kind::File { size, segments } = &member.kind else {
            return Ok(());
        };
        let whole = [Segment::whole(*size)];
        for segment in segments.as_deref().unwrap_or(&whole) {
            let mut at = segment.offset;
            while at < segment.end() {
                let count = (segment.end() - at).min(BUFFER as u64);
                let piece = self.buffer.get_mut(..count as usize).unwrap_or_default();
                body.read_exact(piece)?;
                self.output.write_all(&at.to_le_bytes())?;
                self.output.write_all(&count.to_le_bytes())?;
                self.output.write_all(piece)?;
                at += count;
            }
        }
        Ok(self.output.write_all(&[0; 16])?)
    }
}

/// Receives members.
pub(crate) struct Received<R>(R);

impl<R: Read> Received<R> {
    pub(crate) fn new(input: R) -> Self {
        Self(input)
    }

    /// Returns the next member; none at the end. The contents of the one before were read.
    pub(crate) fn next_member(&mut self) -> Result<Option<Member>, KeepError> {
        let mut length = Vec::new();
        self.0.by_ref().take(4).read_to_end(&mut length)?;
        if length.is_empty() {
            return Ok(None);
        }
        let length = length.try_into().map(u32::from_le_bytes);
        let length = length.map_err(|_| KeepError::CutOff)?;
        if length > RECORD {
            return Err(KeepError::Nonsense);
        }
        let mut record = Vec::new();
        self.0
            .by_ref()
            .take(length.into())
            .read_to_end(&mut record)?;
        if record.len() as u64 != u64::from(length) {
            return Err(KeepError::CutOff);
        }
        let record: Record = postcard::from_bytes(&record).map_err(|_| KeepError::Nonsense)?;
        record.member().map(Some).ok_or(KeepError::Nonsense)
    }

    /// Reads the next piece of a file's contents; returns its offset, or none at their end.
    pub(crate) fn next_piece(&mut self, piece: &mut Vec<u8>) -> Result<Option<u64>, KeepError> {
        let (offset, length) = (self.number()?, self.number()?);
        if length == 0 {
            return Ok(None);
        }
        if length > BUFFER as u64 || offset > MAX_SIZE - length {
            return Err(KeepError::Nonsense);
        }
        piece.clear();
        self.0.by_ref().take(length).read_to_end(piece)?;
        if piece.len() as u64 != length {
            return Err(KeepError::CutOff);
        }
        Ok(Some(offset))
    }

    fn number(&mut self) -> Result<u64, KeepError> {
        let mut number = [0; 8];
        match self.0.read_exact(&mut number) {
            Ok(()) => Ok(u64::from_le_bytes(number)),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(KeepError::CutOff)
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_arrive_as_they_were_sent() {
        let file = |segments| Kind::File {
            size: 300,
            segments,
        };
        let holes = vec![
            Segment {
                offset: 10,
                length: 2,
            },
            Segment {
                offset: 100,
                length: 3,
            },
        ];
        let kinds = [
            (file(Some(holes)), &b"abcde"[..]),
            (Kind::file(4), b"text"),
            (Kind::Symlink(b"to".to_vec()), b""),
            (Kind::BlockDevice(8, 1), b""),
            (Kind::Directory, b""),
        ];
        let mut sender = Sender::new(Vec::new());
        let member = |kind: &Kind| Member {
            path: b"a/b".to_vec(),
            kind: kind.clone(),
            attributes: Attributes {
                mode: 0o4755,
                uid: 7,
                xattrs: vec![(b"user.x".to_vec(), b"1".to_vec())],
                ..Attributes::default()
            },
        };
        for (kind, body) in &kinds {
            let mut body = *body;
            sender.add(&member(kind), &mut body).unwrap();
        }
        let sent = sender.into_inner();
        let mut received = Received::new(&*sent);
        for (kind, body) in &kinds {
            let found = received.next_member().unwrap().unwrap();
            assert_eq!(found.attributes, member(kind).attributes);
            let mut contents: Vec<u8> = Vec::new();
            if let Kind::File { size, .. } = kind {
                assert_eq!(found.kind, Kind::file(*size));
                let mut piece = Vec::new();
                while received.next_piece(&mut piece).unwrap().is_some() {
                    contents.extend(&piece);
                }
            } else {
                assert_eq!(found.kind, *kind);
            }
            assert_eq!(contents, *body);
        }
        assert!(received.next_member().unwrap().is_none());
        // Every part of it is cut off, or a whole number of members.
        for length in 0..sent.len() {
            let mut received = Received::new(&sent[..length]);
            let mut piece = Vec::new();
            let mut read = || -> Result<(), KeepError> {
                while let Some(member) = received.next_member()? {
                    if matches!(member.kind, Kind::File { .. }) {
                        while received.next_piece(&mut piece)?.is_some() {}
                    }
                }
                Ok(())
            };
            match read() {
                Ok(()) | Err(KeepError::CutOff) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn nonsense_of_a_worker_that_was_taken_over_is_refused() {
        let record = |record: Record| {
            let bytes = postcard::to_allocvec(&record).unwrap();
            [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
        };
        let file = |path: &[u8], size| Record {
            path: path.to_vec(),
            kind: RecordKind::File(size),
            mode: 0o170_755,
            uid: 0,
            gid: 0,
            mtime: Timestamp::EPOCH,
            xattrs: Vec::new(),
        };
        for bytes in [
            record(file(b"a", u64::MAX)),
            record(file(b"a\0b", 1)),
            u32::MAX.to_le_bytes().to_vec(),
            b"\x03\0\0\0\xff\xff\xff".to_vec(),
        ] {
            let refused = Received::new(&*bytes).next_member();
            assert!(matches!(refused, Err(KeepError::Nonsense)), "{refused:?}");
        }
        let sound = record(file(b"a", 1));
        let mut received = Received::new(&*sound);
        assert_eq!(
            received.next_member().unwrap().unwrap().attributes.mode,
            0o755
        );
        for (offset, length) in [(u64::MAX, 1), (0, u64::MAX), (MAX_SIZE, 1)] {
            let bytes = [offset.to_le_bytes(), length.to_le_bytes()].concat();
            let refused = Received::new(&*bytes).next_piece(&mut Vec::new());
            assert!(matches!(refused, Err(KeepError::Nonsense)), "{refused:?}");
        }
    }
}
