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

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DISK, Snapshot, settle};
use crate::upper::data_runs;
use crate::{Error, Notes, Sandboxes};

const MAGIC: &[u8; 19] = b"micabox snapshot 1\n";

/// Most bytes of a head: more runs than a disk of 16 TiB is likely to have.
const HEAD_MAX: u32 = 256 << 20;

/// Most bytes of a disk.
const SIZE_MAX: u64 = 16 << 40;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Head {
    snapshot: Snapshot,
    /// Offset and length of each run in the disk, ascending.
    runs: Vec<(u64, u64)>,
}

impl Sandboxes {
    /// Writes a snapshot as one file, with a digest at its end. The image is not included.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::HasMemory`]; [`Error::System`].
    pub fn export_snapshot(&self, name: &str, to: &mut dyn Write) -> Result<(), Error> {
        let snapshot = self.snapshot(name)?;
        if snapshot.memory.is_some() {
            return Err(Error::HasMemory(snapshot.name));
        }
        let path = snapshot.directory.join(DISK);
        write(snapshot, &path, to).map_err(|source| Error::System {
            what: "exporting the snapshot",
            source,
        })
    }

    /// Makes a snapshot of what [`Sandboxes::export_snapshot`] wrote, under its own name or another
    /// one. Its image must be in the store. The path of a root disk is not taken from `from`, which
    /// could name any file: see [`crate::Base::of_snapshot_on`].
    ///
    /// # Errors
    /// [`Error::SnapshotExists`]; [`Error::Store`] without the image; [`Error::System`] if `from`
    /// fails, is not such a file, or does not have the digest at its end.
    pub fn import_snapshot(
        &self,
        name: Option<&str>,
        from: &mut dyn Read,
    ) -> Result<(Snapshot, Notes), Error> {
        let failed = |source| Error::System {
            what: "importing the snapshot",
            source,
        };
        let mut from = Hashed {
            inner: from,
            hash: Sha256::new(),
        };
        let Head { mut snapshot, runs } = read_head(&mut from).map_err(failed)?;
        // The file contains only a disk. Whose snapshot it is here is not the file's to say.
        (snapshot.memory, snapshot.ephemeral) = (None, false);
        snapshot.labels.clear();
        snapshot.base = snapshot.base.elsewhere();
        if let Some(name) = name {
            name.clone_into(&mut snapshot.name);
        }
        let mut notes = Notes::default();
        let (snapshot, _lock) = self.add_snapshot(snapshot, None, |snapshot| {
            let path = snapshot.directory.join(DISK);
            read_disk(&mut from, &path, snapshot.size, &runs).map_err(failed)?;
            notes = settle(&path)?;
            Ok(())
        })?;
        Ok((snapshot, notes))
    }
}

fn write(snapshot: Snapshot, path: &Path, to: &mut dyn Write) -> io::Result<()> {
    let disk = File::open(path)?;
    let runs = data_runs(&disk)?;
    let head = serde_json::to_vec(&Head {
        // They are for programs of this machine.
        snapshot: Snapshot {
            labels: BTreeMap::new(),
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
    // Memory grows with the bytes that arrive, whatever the length says.
    let mut text = Vec::new();
    let mut buffer = vec![0; PIECE];
    let mut left = length as usize;
    while left > 0 {
        let piece = buffer.get_mut(..left.min(PIECE)).unwrap_or_default();
        from.fill(piece)?;
        left -= piece.len();
        text.extend_from_slice(piece);
    }
    let head: Head = serde_json::from_slice(&text)?;
    let mut end = 0;
    for (offset, length) in &head.runs {
        let next = offset.checked_add(*length);
        let next = next.filter(|next| *offset >= end && *next <= head.snapshot.size);
        end = next.ok_or_else(|| wrong("its runs of bytes are not in order"))?;
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

/// Reads only the head of what [`Sandboxes::import_snapshot`] reads, for `fuzz/`.
pub(crate) fn head_alone(from: &mut dyn Read) -> io::Result<(Snapshot, Vec<(u64, u64)>)> {
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
    use crate::BaseName;

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
