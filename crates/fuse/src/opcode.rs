//! What a request asks for (`enum fuse_opcode`), and kinds of it.

#![expect(missing_docs, reason = "the kernel's names")]

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const READLINK: u32 = 5;
pub const SYMLINK: u32 = 6;
pub const MKNOD: u32 = 8;
pub const MKDIR: u32 = 9;
pub const UNLINK: u32 = 10;
pub const RMDIR: u32 = 11;
pub const RENAME: u32 = 12;
pub const LINK: u32 = 13;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const SETXATTR: u32 = 21;
pub const GETXATTR: u32 = 22;
pub const LISTXATTR: u32 = 23;
pub const REMOVEXATTR: u32 = 24;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const FSYNCDIR: u32 = 30;
pub const CREATE: u32 = 35;
pub const INTERRUPT: u32 = 36;
pub const DESTROY: u32 = 38;
pub const BATCH_FORGET: u32 = 42;
pub const FALLOCATE: u32 = 43;
pub const READDIRPLUS: u32 = 44;
pub const RENAME2: u32 = 45;
pub const LSEEK: u32 = 46;
pub const COPY_FILE_RANGE: u32 = 47;
pub const SYNCFS: u32 = 50;
pub const TMPFILE: u32 = 51;
pub const STATX: u32 = 52;

/// Returns whether a request changes which names there are and what they lead to.
#[must_use]
pub fn changes_names(code: u32) -> bool {
    matches!(
        code,
        SYMLINK | MKNOD | MKDIR | UNLINK | RMDIR | RENAME | RENAME2 | LINK | CREATE | TMPFILE
    )
}

/// Returns whether a request changes something: names, contents or attributes. One to open a file does
/// too if the file is to be emptied, which the kernel sends only where that was agreed on
/// (`FUSE_ATOMIC_O_TRUNC`).
#[must_use]
pub fn changes(code: u32) -> bool {
    changes_names(code)
        || matches!(
            code,
            SETATTR | WRITE | FALLOCATE | COPY_FILE_RANGE | SETXATTR | REMOVEXATTR
        )
}

/// Returns whether a request forgets lookups of inodes, which has no reply.
#[must_use]
pub fn forgets(code: u32) -> bool {
    matches!(code, FORGET | BATCH_FORGET)
}
