//! Jobs on a filesystem as a whole: check, journal replay, growth.

use std::fs::File;
use std::os::fd::OwnedFd;

use micabox_ext4::check::{check, clear_errors};
use micabox_ext4::{Ext4, Options, resize};
use micabox_jail::Call;
use serde::{Deserialize, Serialize};

use super::Result;
use crate::{Fault, Files, length};

/// A problem of a filesystem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The inode with the problem.
    pub inode: Option<u32>,
    /// What is wrong.
    pub problem: String,
    /// All of the finding, for people.
    pub text: String,
}

/// Sizes of a filesystem that has grown.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Grown {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks before.
    pub blocks_before: u64,
    /// Blocks now.
    pub blocks: u64,
    /// Free blocks now.
    pub free_blocks: u64,
    /// Inodes now.
    pub inodes: u32,
}

/// A filesystem whose journal was replayed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Replayed {
    /// Whether it was marked as having errors.
    pub had_errors: bool,
    /// Whether it is not marked now.
    pub is_sound: bool,
}

/// Lists problems, up to the checker's limit. File: the filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Check;

/// Replays the journal. File: the filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Replay;

/// Grows the filesystem. File: the filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Grow {
    size: u64,
}

/// Checks a filesystem. Returns its problems.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError).
pub fn findings(file: File) -> Result<Vec<Finding>> {
    crate::call(&Check, file, Vec::new(), 0)
}

/// Replays the journal, and removes a mark of errors if a check finds nothing.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError).
pub fn replay(file: File) -> Result<Replayed> {
    let size = length(&file).unwrap_or(0);
    crate::call(&Replay, file, Vec::new(), size)
}

/// Grows a filesystem to `size` bytes. Its file must be that long already.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError).
pub fn grow(file: File, size: u64) -> Result<Grown> {
    let length = length(&file).unwrap_or(0).max(size);
    crate::call(&Grow { size }, file, Vec::new(), length)
}

impl Call for Check {
    const KIND: &'static str = "ext4-check";
    type Reply = Vec<Finding>;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Vec<Finding>, Fault> {
        let findings = check(&Files::new(files).take()?).into_iter();
        let each = findings.map(|finding| Finding {
            text: finding.to_string(),
            inode: finding.inode,
            problem: finding.problem,
        });
        Ok(each.collect())
    }
}

impl Call for Replay {
    const KIND: &'static str = "ext4-replay";
    type Reply = Replayed;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Replayed, Fault> {
        let mut file = Files::new(files).take()?;
        let options = Options {
            despite_errors: true,
            ..Options::default()
        };
        let filesystem = Ext4::open(&mut file, options).map_err(Fault::disk)?;
        let had_errors = filesystem.has_errors();
        filesystem.close().map_err(Fault::disk)?;
        let is_sound = if had_errors {
            clear_errors(&mut file).map_err(Fault::disk)?.is_empty()
        } else {
            true
        };
        Ok(Replayed {
            had_errors,
            is_sound,
        })
    }
}

impl Call for Grow {
    const KIND: &'static str = "ext4-grow";
    type Reply = Grown;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Grown, Fault> {
        let mut file = Files::new(files).take()?;
        let grown = resize::grow(&mut file, self.size).map_err(Fault::disk)?;
        Ok(Grown {
            block_size: grown.block_size,
            blocks_before: grown.blocks_before,
            blocks: grown.blocks,
            free_blocks: grown.free_blocks,
            inodes: grown.inodes,
        })
    }
}
