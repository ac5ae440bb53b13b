//! Clears the mark that a kernel leaves on a filesystem in which it found errors, or which it could
//! not write.

use alloc::vec::Vec;

use super::{Finding, Mark, examine};
use crate::BlockDevice;
use crate::error::Result;
use crate::format::superblock::{SUPERBLOCK_OFFSET, Superblock};

/// Removes the mark of errors from a filesystem that is otherwise sound, as `e2fsck -p` does after
/// a full check. Returns the other defects; if there are any, nothing was changed.
///
/// Open and close the filesystem with [`crate::Options::despite_errors`] first, so that its journal
/// is replayed.
///
/// # Errors
///
/// Those of the device.
pub fn clear_errors<D: BlockDevice>(device: &mut D) -> Result<Vec<Finding>> {
    let findings = examine(device, Mark::Forgiven);
    if !findings.is_empty() {
        return Ok(findings);
    }
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let mut superblock = Superblock::decode(&bytes);
    if superblock.has_errors() {
        superblock.clear_errors();
        superblock.seal_into(&mut bytes);
        device.write_at(SUPERBLOCK_OFFSET, &bytes)?;
        device.flush()?;
    }
    Ok(findings)
}
