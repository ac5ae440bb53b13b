//! Bits of a mode that the kernel takes away (inode(7)).

/// Set-id bits, and execution by the group.
pub(crate) const SET_UID: u16 = 0o4000;
pub(crate) const SET_GID: u16 = 0o2000;
pub(crate) const GROUP_EXECUTES: u16 = 0o010;
