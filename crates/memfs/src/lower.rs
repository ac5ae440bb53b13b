//! A read-only tree below a filesystem.

use std::fmt::Debug;

use micabox_file::{FileKind, Segment};

use crate::Result;
use micabox_file::Stat;

/// A name in a directory, with the number and the kind of what it stands for.
pub type LowerEntry = (Box<[u8]>, u64, FileKind);

/// A read-only tree, whose files have numbers below 2^62. It does not change while a filesystem is over
/// it.
///
/// Its files come from an archive, a disk or a directory that may be damaged or hostile: what it
/// returns is checked where it is used. Errors are what a program sees that reads the file. Its methods are
/// called side by side, also while a directory or a file is locked; none may wait for the filesystem above.
pub trait Lower: Debug + Send + Sync {
    /// Returns the number of the root directory.
    fn root(&self) -> u64;

    /// Returns a file's attributes. [`Stat::number`] is its number; all names of one file have the
    /// same. [`Stat::links`] counts its names.
    ///
    /// # Errors
    /// `EIO`, as for all other methods, and the source's own errors.
    fn stat(&self, number: u64) -> Result<Stat>;

    /// Returns the names in a directory, without `.` and `..`, always in the same order.
    ///
    /// # Errors
    /// As above.
    fn list(&self, directory: u64) -> Result<Vec<LowerEntry>>;

    /// Reads from a file. Returns the number of bytes, 0 at its end, and fewer than asked for only there.
    ///
    /// # Errors
    /// As above.
    fn read(&self, file: u64, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Returns the parts of a file that are not holes, ascending.
    ///
    /// # Errors
    /// As above.
    fn segments(&self, file: u64) -> Result<Vec<Segment>>;

    /// Returns a symbolic link's target.
    ///
    /// # Errors
    /// As above.
    fn target(&self, link: u64) -> Result<Vec<u8>>;

    /// Returns names and values of a file's extended attributes, as programs see them.
    ///
    /// # Errors
    /// As above.
    fn xattrs(&self, number: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
}
