//! What is in files (read(2), write(2), fallocate(2), lseek(2), copy_file_range(2)).

use rustix::io::Errno;

use crate::Result;
use crate::attributes::Kill;
use crate::clock::now;
use crate::contents::SIZE_MAX;
use crate::filesystem::Filesystem;

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

/// What [`Filesystem::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// A page that was written (`SEEK_DATA`).
    Data,
    /// A page that was not, or the end (`SEEK_HOLE`).
    Hole,
}

impl Filesystem {
    /// Calls `use_pieces` with the bytes of a range, as far as the file goes. The file can't be changed
    /// meanwhile.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL`, `ESTALE`, those of the lower.
    pub fn read<T>(
        &self,
        number: u64,
        offset: u64,
        count: u64,
        use_pieces: impl FnOnce(Vec<&[u8]>) -> T,
    ) -> Result<T> {
        let inode = self.inode(number)?;
        let contents = inode.contents()?;
        let mut buffer = Vec::new();
        Ok(use_pieces(contents.read(offset, count, &mut buffer)?))
    }

    /// Writes bytes, as many as there is room for; returns how many those are. Capabilities go.
    ///
    /// # Errors
    /// `ENOSPC` if there is no room for any, `EFBIG`, `EISDIR`, `EINVAL`, `ESTALE`.
    pub fn write(&self, number: u64, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_and_kill(number, offset, data, Kill::Capabilities)
    }

    /// Writes as [`write`](Self::write) does, and clears the privileges that `kill` selects.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn write_and_kill(
        &self,
        number: u64,
        offset: u64,
        data: &[u8],
        kill: Kill,
    ) -> Result<usize> {
        let inode = self.inode(number)?;
        self.keep(&inode)?;
        let mut contents = inode.contents_mut()?;
        let written = contents.write(offset, data, false, self.room())?;
        let mut state = inode.state();
        self.kill(&mut state, kill);
        state.modified(now());
        Ok(written)
    }

    /// Writes bytes from the kernel's cache, all or none. Times stay: the kernel sets them itself.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EISDIR`, `EINVAL`, `ESTALE`.
    pub fn write_back(&self, number: u64, offset: u64, data: &[u8]) -> Result<()> {
        let inode = self.inode(number)?;
        let kept = self.keep(&inode);
        let mut contents = inode.contents_mut()?;
        let written = kept.and_then(|()| contents.write(offset, data, true, self.room()));
        if written == Err(Errno::NOSPC) {
            contents.tear();
        }
        written.map(drop)
    }

    /// Returns how many files lack bytes that programs wrote: the kernel had accepted them, and they had no room when it
    /// wrote them back ([`write_back`](Self::write_back)). A file that is made empty lacks none from then on.
    #[must_use]
    pub fn torn_files(&self) -> usize {
        let mut count = 0;
        self.inodes.each(|inode| {
            let is_torn = inode.contents().is_ok_and(|contents| contents.is_torn());
            if is_torn && inode.state().links > 0 {
                count += 1;
            }
        });
        count
    }

    /// Makes a range be in memory, and the file as long, unless `keep_size`.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EINVAL`, `EISDIR`, `ESTALE`.
    pub fn allocate(&self, number: u64, offset: u64, count: u64, keep_size: bool) -> Result<()> {
        let end = end(offset, count)?;
        let inode = self.inode(number)?;
        self.keep(&inode)?;
        let mut contents = inode.contents_mut()?;
        contents.allocate(offset, count, self.room())?;
        if !keep_size {
            contents.extend(end);
        }
        inode.state().modified(now());
        Ok(())
    }

    /// Makes a range a hole; the size stays.
    ///
    /// # Errors
    /// `EFBIG`, `EINVAL`, `EISDIR`, `ESTALE`; over a lower `ENOSPC`.
    pub fn punch(&self, number: u64, offset: u64, count: u64) -> Result<()> {
        let end = end(offset, count)?;
        let inode = self.inode(number)?;
        self.keep(&inode)?;
        inode.contents_mut()?.punch(offset, end, self.room())?;
        inode.state().modified(now());
        Ok(())
    }

    /// Makes a range zeros that are in memory, and the file as long, unless `keep_size`.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub fn zero(&self, number: u64, offset: u64, count: u64, keep_size: bool) -> Result<()> {
        self.punch(number, offset, count)?;
        self.allocate(number, offset, count, keep_size)
    }

    /// Finds the first byte from `offset` on that is data, or a hole.
    ///
    /// # Errors
    /// `ENXIO` behind the end, or if there is no data; `EISDIR`, `EINVAL`, `ESTALE`.
    pub fn seek(&self, number: u64, offset: u64, what: Seek) -> Result<u64> {
        let inode = self.inode(number)?;
        inode.contents()?.seek(offset, what == Seek::Data)
    }

    /// Copies a range from one file to another, or within one; returns the number of bytes.
    ///
    /// # Errors
    /// Those of [`write`](Self::write) if no byte was copied.
    pub fn copy(&self, from: (u64, u64), to: (u64, u64), count: u64) -> Result<u64> {
        // As far as the file goes now: it may be the one that grows.
        let size = self.inode(from.0)?.contents()?.size();
        let count = count.min(size.saturating_sub(from.1));
        let mut copied = 0;
        while copied < count {
            let piece = (count - copied).min(PIECE);
            let bytes = self.read(from.0, from.1.saturating_add(copied), piece, |pieces| {
                pieces.concat()
            })?;
            if bytes.is_empty() {
                break;
            }
            match self.write(to.0, to.1.saturating_add(copied), &bytes) {
                Ok(written) => {
                    copied += written as u64;
                    if written < bytes.len() {
                        break;
                    }
                }
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }
}

/// Returns the end of a range that is not empty.
fn end(offset: u64, count: u64) -> Result<u64> {
    if count == 0 {
        return Err(Errno::INVAL);
    }
    offset
        .checked_add(count)
        .filter(|&end| end <= SIZE_MAX)
        .ok_or(Errno::FBIG)
}
