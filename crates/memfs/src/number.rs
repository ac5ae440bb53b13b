//! The numbers of inodes: odd for those that are made here, even for files of the lower.

use rustix::io::Errno;

use crate::Result;

/// The number of the root directory.
pub const ROOT: u64 = 1;

/// Returns the number of a file of the lower that is not its root. It is the same whenever the file is
/// looked up, and no inode that is made here has it.
pub(crate) fn number_of(file: u64) -> Result<u64> {
    match file {
        0..0x4000_0000_0000_0000 => Ok((file + 1) * 2),
        _ => Err(Errno::IO),
    }
}

/// Returns the file of the lower that has a number here; none for the root.
pub(crate) fn file_of(number: u64) -> Option<u64> {
    if is_from_lower(number) {
        (number / 2).checked_sub(1)
    } else {
        None
    }
}

/// Returns whether an inode's number is that of a file of the lower which is not its root.
pub(crate) fn is_from_lower(number: u64) -> bool {
    number.is_multiple_of(2)
}
