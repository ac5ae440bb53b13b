//! Inodes of the lower are kept once they are changed, and take room from then on.

use crate::Result;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, State};
use crate::number::ROOT;
use crate::xattr::set;

impl Filesystem {
    /// Keeps an inode, which is about to be changed, and takes room for what it has in memory. Its contents
    /// stay below.
    pub(crate) fn keep(&self, inode: &Inode) -> Result<()> {
        // Most inodes are not from a lower.
        if !inode.is_from_lower() && inode.number != ROOT {
            return Ok(());
        }
        let mut state = inode.state();
        if state.taken > 0 {
            return Ok(());
        }
        self.room().take_inode()?;
        if let Err(error) = self.room().take_bytes(bytes(inode, &state)) {
            self.room().give_inodes(1);
            return Err(error);
        }
        state.taken = 1;
        Ok(())
    }

    /// Keeps an inode for a removal, which must not fail: takes room beyond the limits.
    pub(crate) fn keep_anyway(&self, inode: &Inode, state: &mut State) {
        if state.taken == 0 {
            self.room().take_beyond(1, bytes(inode, state));
            state.taken = 1;
        }
    }
}

/// Returns what an inode of the lower takes beside its contents.
fn bytes(inode: &Inode, state: &State) -> u64 {
    let target = inode.target().map_or(0, <[u8]>::len) as u64;
    target + set::sum(&state.xattrs)
}
