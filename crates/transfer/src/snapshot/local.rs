//! Chunks that other snapshots of this store have, so that they need not be fetched.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use micabox_chunk::{MOST_MAP, Map};
use sha2::{Digest as _, Sha256};

use super::MOST_PACKS;

/// Most chunks of other snapshots that are remembered: those of 64 GiB.
const MOST_CHUNKS: usize = 4 << 20;

/// A file of a snapshot here, and its map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutFile {
    /// The path of the map, as it was in a registry.
    pub map: PathBuf,
    /// The path of the file.
    pub file: PathBuf,
}

/// Where chunks are in files here.
#[derive(Debug, Default)]
pub(super) struct Local {
    files: Vec<File>,
    chunks: HashMap<[u8; 32], (usize, u64)>,
}

impl Local {
    /// Reads the maps of files. Those that can't be read are passed over.
    pub(super) fn of(all: &[CutFile]) -> Self {
        let mut local = Self::default();
        for CutFile { map, file } in all {
            let is_short = fs::metadata(map).is_ok_and(|metadata| metadata.len() <= MOST_MAP);
            let bytes = if is_short { fs::read(map).ok() } else { None };
            let map = bytes.and_then(|bytes| Map::parse(&bytes, MOST_PACKS).ok());
            let (Some(map), Ok(file)) = (map, File::open(file)) else {
                continue;
            };
            let number = local.files.len();
            local.files.push(file);
            for entry in map.entries() {
                if local.chunks.len() >= MOST_CHUNKS {
                    return local;
                }
                let at = map.range(entry).start;
                local.chunks.entry(entry.sha256).or_insert((number, at));
            }
        }
        local
    }

    /// Reads and checks a chunk; none if it is not here. A file that has changed since has other bytes.
    pub(super) fn read(&self, sha256: &[u8; 32], length: u64) -> Option<Vec<u8>> {
        let (file, at) = self.chunks.get(sha256)?;
        let mut bytes = vec![0; length as usize];
        self.files.get(*file)?.read_exact_at(&mut bytes, *at).ok()?;
        (Sha256::digest(&bytes)[..] == sha256[..]).then_some(bytes)
    }
}
