//! Extended attributes of open files.

use std::os::fd::BorrowedFd;

use rustix::fs::{fgetxattr, flistxattr, flistxattr_query};
use rustix::io::Errno;

/// Linux's `XATTR_LIST_MAX` and `XATTR_SIZE_MAX`.
const MOST: usize = 64 << 10;

/// Bytes of all names and values of one file, as many as the reader of archives takes.
const TOTAL: usize = 128 << 10;

/// Names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the wanted attributes of a file.
pub fn read(file: BorrowedFd<'_>, wanted: fn(&[u8]) -> bool) -> Result<Xattrs, Errno> {
    // Most files have none, and need no buffer.
    match flistxattr_query(file) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(errno) => return Err(errno),
    }
    let mut buffer = vec![0; MOST];
    let count = flistxattr(file, &mut *buffer)?;
    let names = buffer.get(..count).unwrap_or_default().to_vec();
    let mut xattrs = Vec::new();
    let mut total = 0;
    for name in names.split(|byte| *byte == 0) {
        if name.is_empty() || !wanted(name) {
            continue;
        }
        let count = match fgetxattr(file, name, &mut *buffer) {
            Ok(count) => count,
            // Removed meanwhile, or for others' eyes.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => continue,
            Err(errno) => return Err(errno),
        };
        total += name.len() + count;
        if total > TOTAL {
            return Err(Errno::TOOBIG);
        }
        let value = buffer.get(..count).unwrap_or_default();
        xattrs.push((name.to_vec(), value.to_vec()));
    }
    Ok(xattrs)
}
