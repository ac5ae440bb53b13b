//! Where changes go.

use std::str::FromStr;

use super::WordError;
use super::size::mebibytes;
use crate::{DEFAULT_DISK_SIZE, Upper};

/// Reads `tmpfs`, `disk`, `disk:SIZE` or `folder:DIR`, whose path stays as it is written.
impl FromStr for Upper {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let size = match text.split_once(':') {
            None if text == "tmpfs" => return Ok(Self::Tmpfs),
            None if text == "disk" => DEFAULT_DISK_SIZE,
            Some(("disk", size)) => match mebibytes(size)? {
                mib @ 16.0..=16_777_216.0 => (mib as u64) << 20,
                0.0..16.0 => return Err("a disk needs at least 16m".into()),
                _ => return Err("a disk has at most 16t".into()),
            },
            Some(("folder", path)) if !path.is_empty() => {
                return Ok(Self::Folder { path: path.into() });
            }
            _ => return Err("expected tmpfs, disk, disk:SIZE or folder:DIR".into()),
        };
        Ok(Self::Disk { size })
    }
}
