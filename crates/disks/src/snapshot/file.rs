//! Exports and imports snapshots as one file.
//!
//! All numbers are little endian.
//!
//! | bytes | what |
//! |---|---|
//! | 19 | `micabox snapshot 1` and a line feed |
//! | 4 | length of the head |
//! | | the head, JSON: the snapshot, and the runs of bytes that are not holes |
//! | | the bytes of the runs |
//! | 32 | SHA-256 of everything before |

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use micabox_error::Error;
use micabox_parsers::Notes;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};
use sha2::{Digest, Sha256};

use super::Snapshots;
use super::{DISK, SIZE_MAX, Snapshot, claim, open_disk, settle};
use crate::upper::data_runs;

const MAGIC: &[u8; 19] = b"micabox snapshot 1\n";

/// Most bytes of a head: more runs than a disk of 16 TiB is likely to have.
const HEAD_MAX: u32 = 256 << 20;

/// Most runs, each of which is kept in memory. Exports of disks with more have fewer holes.
const RUNS_MAX: usize = 4 << 20;

/// Most bytes of a head between two runs, and before and after all of them.
const TEXT_MAX: usize = 1 << 20;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

#[derive(Serialize)]
struct Head {
    snapshot: Snapshot,
    /// Offset and length of each run in the disk, ascending.
    runs: Vec<(u64, u64)>,
}

impl Snapshots<'_> {
    /// Writes a snapshot as one file, with a digest at its end. The image is not included.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::HasMemory`]; [`Error::System`].
    pub fn export(&self, name: &str, to: &mut dyn Write) -> Result<(), Error> {
        let snapshot = self.get(name)?;
        if snapshot.memory.is_some() {
            return Err(Error::HasMemory(snapshot.name));
        }
        let disk = open_disk(self.0.store(), &snapshot.directory)?;
        write(snapshot, &disk, to).map_err(|source| Error::System {
            what: "exporting the snapshot",
            source,
        })
    }

    /// Makes a snapshot of what [`Snapshots::export`] wrote, under its own name or another
    /// one. Its image must be in the store. The path of a root disk is not taken from `from`, which
    /// could name any file: see [`crate::Base::of_snapshot_on`].
    ///
    /// # Errors
    /// [`Error::SnapshotExists`]; [`Error::Store`] without the image; [`Error::System`] if `from`
    /// fails, is not such a file, or does not have the digest at its end.
    pub fn import(
        &self,
        name: Option<&str>,
        from: &mut dyn Read,
    ) -> Result<(Snapshot, Notes), Error> {
        let failed = |source: io::Error| Error::System {
            what: "importing the snapshot",
            source: match source.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::new(source.kind(), "it is cut short: copy or export it again")
                }
                _ => source,
            },
        };
        let mut from = Hashed {
            inner: from,
            hash: Sha256::new(),
        };
        let Head { mut snapshot, runs } = read_head(&mut from).map_err(failed)?;
        // The file contains only a disk. Whose snapshot it is here is not the file's to say.
        (snapshot.memory, snapshot.ephemeral) = (None, false);
        snapshot.labels.clear();
        snapshot.places.clear();
        snapshot.base = snapshot.base.elsewhere();
        if let Some(name) = name {
            name.clone_into(&mut snapshot.name);
        }
        let mut notes = Notes::default();
        let (snapshot, _lock) = self.add(snapshot, None, claim, |snapshot| {
            let path = snapshot.directory.join(DISK);
            read_disk(&mut from, &path, snapshot.size, &runs).map_err(failed)?;
            notes = settle(&path)?;
            Ok::<_, Error>(())
        })?;
        Ok((snapshot, notes))
    }
}

fn write(snapshot: Snapshot, disk: &File, to: &mut dyn Write) -> io::Result<()> {
    let runs = at_most(data_runs(disk)?, RUNS_MAX);
    let head = serde_json::to_vec(&Head {
        // They are for programs of this machine.
        snapshot: Snapshot {
            labels: BTreeMap::new(),
            places: Vec::new(),
            ..snapshot
        },
        runs: runs.clone(),
    })?;
    let length = u32::try_from(head.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut hash = Sha256::new();
    let mut put = |bytes: &[u8]| {
        hash.update(bytes);
        to.write_all(bytes)
    };
    put(MAGIC)?;
    put(&length.to_le_bytes())?;
    put(&head)?;
    let mut buffer = vec![0; PIECE];
    for (mut at, length) in runs {
        let end = at + length;
        while at < end {
            let count = buffer.len().min((end - at) as usize);
            let piece = buffer.get_mut(..count).unwrap_or_default();
            disk.read_exact_at(piece, at)?;
            put(piece)?;
            at += count as u64;
        }
    }
    to.write_all(&hash.finalize())?;
    to.flush()
}

/// Reads and hashes.
struct Hashed<'a> {
    inner: &'a mut dyn Read,
    hash: Sha256,
}

impl Hashed<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.hash.update(&*bytes);
        Ok(())
    }
}

fn read_head(from: &mut Hashed<'_>) -> io::Result<Head> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut magic = [0; MAGIC.len()];
    let mut length = [0; 4];
    from.fill(&mut magic)?;
    if magic != *MAGIC {
        return Err(wrong("it is not a mica snapshot"));
    }
    from.fill(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > HEAD_MAX {
        return Err(wrong("its head is too long"));
    }
    let head = parse_head(from, length)?;
    let end = head
        .runs
        .last()
        .map_or(0, |(offset, length)| offset + length);
    if end > head.snapshot.size {
        return Err(wrong("its runs of bytes are beyond its disk"));
    }
    let disk = head.snapshot.base.disk();
    if disk.is_some_and(|disk| disk.in_place) {
        return Err(wrong(
            "its root disk is one that is written to, which has no snapshots",
        ));
    }
    if head.snapshot.size > SIZE_MAX {
        return Err(wrong("its disk is too large"));
    }
    Ok(head)
}

/// Parses a head of `length` bytes as they arrive. Its text isn't kept, so that it takes no more memory
/// than the runs in it.
fn parse_head(from: &mut Hashed<'_>, length: u32) -> io::Result<Head> {
    let room = Cell::new(TEXT_MAX);
    let text = Text {
        from,
        left: length as usize,
        room: &room,
    };
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(text));
    let head = HeadSeed(&room).deserialize(&mut json)?;
    json.end()?;
    Ok(head)
}

/// The text of a head, which ends early once there is no more room for what isn't a run.
struct Text<'a, 'b> {
    from: &'a mut Hashed<'b>,
    left: usize,
    room: &'a Cell<usize>,
}

impl Read for Text<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.left);
        let room = self.room.get().checked_sub(count);
        let room = room.ok_or_else(|| io::Error::other("its head has too long a text"))?;
        self.room.set(room);
        self.from
            .fill(buffer.get_mut(..count).unwrap_or_default())?;
        self.left -= count;
        Ok(count)
    }
}

struct HeadSeed<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for HeadSeed<'_> {
    type Value = Head;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Head, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeadSeed<'_> {
    type Value = Head;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the head of a snapshot")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Head, A::Error> {
        let (mut snapshot, mut runs) = (None, None);
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "snapshot" => snapshot = Some(map.next_value()?),
                "runs" => runs = Some(map.next_value_seed(RunsSeed(self.0))?),
                _ => {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
            }
        }
        Ok(Head {
            snapshot: snapshot.ok_or_else(|| A::Error::missing_field("snapshot"))?,
            runs: runs.ok_or_else(|| A::Error::missing_field("runs"))?,
        })
    }
}

/// Checks runs one by one: they have bytes, and are in order.
struct RunsSeed<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for RunsSeed<'_> {
    type Value = Vec<(u64, u64)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for RunsSeed<'_> {
    type Value = Vec<(u64, u64)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("runs of bytes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut end = 0;
        while let Some((offset, length)) = list.next_element::<(u64, u64)>()? {
            let next = offset.checked_add(length).filter(|next| *next > offset);
            let next = next.filter(|_| offset >= end);
            end = next.ok_or_else(|| A::Error::custom("its runs of bytes are not in order"))?;
            if runs.len() >= RUNS_MAX {
                return Err(A::Error::custom("it has too many runs of bytes"));
            }
            runs.push((offset, length));
            self.0.set(TEXT_MAX);
        }
        Ok(runs)
    }
}

/// Joins runs over the smallest holes between them until there are no more than `most`.
fn at_most(mut runs: Vec<(u64, u64)>, most: usize) -> Vec<(u64, u64)> {
    let mut hole = 4096;
    while runs.len() > most.max(1) {
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(most);
        for (offset, length) in runs {
            match joined.last_mut() {
                Some((start, before)) if offset - (*start + *before) <= hole => {
                    *before = offset + length - *start;
                }
                _ => joined.push((offset, length)),
            }
        }
        (runs, hole) = (joined, hole * 2);
    }
    runs
}

/// Reads only the head of what [`Snapshots::import`] reads, for `fuzz/`.
pub fn head_alone(from: &mut dyn Read) -> io::Result<(Snapshot, Vec<(u64, u64)>)> {
    let hash = Sha256::new();
    let head = read_head(&mut Hashed { inner: from, hash })?;
    Ok((head.snapshot, head.runs))
}

fn read_disk(from: &mut Hashed<'_>, path: &Path, size: u64, runs: &[(u64, u64)]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let disk = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    disk.set_len(size)?;
    let mut buffer = vec![0; PIECE];
    for (offset, length) in runs {
        let (mut at, mut left) = (*offset, *length);
        while left > 0 {
            let count = buffer.len().min(left as usize);
            let piece = buffer.get_mut(..count).unwrap_or_default();
            from.fill(piece)?;
            disk.write_all_at(piece, at)?;
            at += count as u64;
            left -= count as u64;
        }
    }
    let expected = from.hash.clone().finalize();
    let mut digest = [0; 32];
    from.inner.read_exact(&mut digest)?;
    if digest[..] != expected[..] {
        let problem = "its bytes do not have the digest at its end";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    disk.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use micabox_state::BaseName;

    /// Returns a file as versions of mica before [`BaseName`] wrote it, with an empty disk.
    fn exported(base: &str) -> Vec<u8> {
        let head = format!(
            r#"{{"snapshot":{{"name":"monday",{base},"sandbox":"db","created":1763800000,
                "size":67108864}},"runs":[[0,4096]]}}"#
        );
        let mut file = MAGIC.to_vec();
        file.extend(u32::try_from(head.len()).unwrap().to_le_bytes());
        file.extend(head.as_bytes());
        file
    }

    /// Returns a file with a head that `write` writes after the snapshot.
    fn with_head(snapshot: &str, rest: &str) -> Vec<u8> {
        let head = format!(r#"{{"snapshot":{snapshot}{rest}}}"#);
        let mut file = MAGIC.to_vec();
        file.extend(u32::try_from(head.len()).unwrap().to_le_bytes());
        file.extend(head.as_bytes());
        file
    }

    /// Counts what is read.
    struct Counted<R>(R, usize);

    impl<R: Read> Read for Counted<R> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.read(buffer)?;
            self.1 += count;
            Ok(count)
        }
    }

    #[test]
    fn a_head_that_is_no_list_of_runs_is_refused_at_its_first_byte() {
        let digest = format!("sha256:{}", "1".repeat(64));
        let snapshot = format!(
            r#"{{"name":"monday","image":{{"reference":"debian:12","digest":"{digest}"}},
                "sandbox":"db","created":1763800000,"size":67108864}}"#
        );
        for (rest, part) in [
            (r#","runs":[[0,0],[0,0]]"#, "not in order"),
            (r#","runs":[[4096,4096],[0,4096]]"#, "not in order"),
            (r#","runs":[[0,4096],[4095,1]]"#, "not in order"),
            (r#","runs":[[1,18446744073709551615]]"#, "not in order"),
            (r#","runs":[[0,67108865]]"#, "beyond its disk"),
            (r#","runs":[[0]]"#, "invalid length"),
            ("", "missing field"),
        ] {
            let error = head_alone(&mut &*with_head(&snapshot, rest)).unwrap_err();
            assert!(error.to_string().contains(part), "{rest}: {error}");
        }
        let runs: Vec<String> = (0..50_000).map(|i| format!("[{},1]", i * 2)).collect();
        let many = with_head(&snapshot, &format!(r#","runs":[{}]"#, runs.join(",")));
        assert_eq!(head_alone(&mut &*many).unwrap().1.len(), 50_000);

        // A text without end is given up, whatever its length says.
        for begin in [r#"{"name":""#, r#"{"snapshot":{"name":""#] {
            let mut start = MAGIC.to_vec();
            start.extend(HEAD_MAX.to_le_bytes());
            start.extend(begin.as_bytes());
            let endless = (&start[..]).chain(io::repeat(b' ').take(u64::from(HEAD_MAX)));
            let mut from = Counted(endless, 0);
            let error = head_alone(&mut from).unwrap_err().to_string();
            assert!(error.contains("too long a text"), "{error}");
            assert!(from.1 < 2 * TEXT_MAX, "{}", from.1);
        }
    }

    #[test]
    fn runs_are_joined_over_small_holes_until_they_are_few() {
        let runs = vec![(0, 10), (20, 10), (100_000, 10), (1 << 30, 10)];
        assert_eq!(at_most(runs.clone(), 4), runs);
        assert_eq!(
            at_most(runs.clone(), 3),
            [(0, 30), (100_000, 10), (1 << 30, 10)]
        );
        assert_eq!(at_most(runs.clone(), 2), [(0, 100_010), (1 << 30, 10)]);
        assert_eq!(at_most(runs, 0), [(0, (1 << 30) + 10)]);
    }

    #[test]
    fn files_of_earlier_versions_are_read() {
        let digest = format!("sha256:{}", "1".repeat(64));
        let image = format!(r#""image":{{"reference":"debian:12","digest":"{digest}"}}"#);
        let (snapshot, runs) = head_alone(&mut &*exported(&image)).unwrap();
        let BaseName::Image(image) = &snapshot.base else {
            panic!("{snapshot:?}");
        };
        assert_eq!(image.parse_digest().unwrap().to_string(), digest);
        assert_eq!(runs, [(0, 4096)]);

        let disk = |in_place| {
            let disk = format!(
                r#""image":{{"reference":"/d","digest":""}},"root_disk":{{"path":"/d",
                    "format":"erofs","in_place":{in_place},"size":4096,
                    "uuid":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"modified":[1,2]}}"#
            );
            head_alone(&mut &*exported(&disk))
        };
        let (snapshot, _) = disk(false).unwrap();
        assert!(matches!(&snapshot.base, BaseName::Disk(disk) if disk.path.ends_with("d")));
        let error = disk(true).unwrap_err().to_string();
        assert!(error.contains("written to"), "{error}");
    }
}
