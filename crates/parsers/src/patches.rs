//! Applies patches to the upper layer on a disk: the worker's side.

use std::fs::File;

use micabox_overlay::edit::Edit;
use micabox_overlay::lower::Lower;
use micabox_overlay::patch::Patch;
use serde::{Deserialize, Serialize};

/// Why patches were not applied.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{problem}")]
pub struct PatchFault {
    /// The patch that failed, counted from 0; none if the disk can't be used.
    pub which: Option<u32>,
    /// Why it failed.
    pub problem: String,
}

impl PatchFault {
    /// A fault of the disk, and of no patch.
    pub fn disk(problem: impl ToString) -> Self {
        Self {
            which: None,
            problem: problem.to_string(),
        }
    }
}

/// Applies patches. Each patch with a file takes the next of `files`.
pub fn carry_out(
    disk: File,
    lower: Lower,
    patches: &[Patch],
    files: Vec<File>,
) -> Result<(), PatchFault> {
    let mut edit = Edit::layer(disk, lower).map_err(PatchFault::disk)?;
    let mut files = files.into_iter();
    for (patch, which) in patches.iter().zip(0..) {
        let file = if patch.has_file() { files.next() } else { None };
        patch.apply(&mut edit, file).map_err(|problem| PatchFault {
            which: Some(which),
            problem: problem.to_string(),
        })?;
    }
    edit.close().map_err(PatchFault::disk)
}
