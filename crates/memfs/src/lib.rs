#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attributes;
mod below;
mod changes;
mod clock;
mod contents;
mod data;
mod directory;
mod filesystem;
mod inode;
mod lists;
mod lower;
mod names;
mod rename;
mod room;
mod table;
mod xattr;

pub use attributes::{Change, Kill, Stat, Time};
pub use changes::Changes;
pub use data::Seek;
pub use directory::Listed;
pub use filesystem::{Filesystem, ROOT};
pub use inode::New;
pub use lower::{Lower, LowerEntry};
pub use micabox_file::{FileKind, Timestamp};
pub use names::NAME_MAX;
pub use rename::Mode as RenameMode;
pub use room::{Limits, Usage};
pub use rustix::io::Errno;
pub use xattr::SetMode;

type Result<T> = std::result::Result<T, Errno>;
