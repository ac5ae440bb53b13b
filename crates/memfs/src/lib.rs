#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attributes;
mod below;
mod changes;
mod children;
mod clock;
mod contents;
mod data;
mod directory;
mod filesystem;
mod inode;
mod kept;
mod listing;
mod lists;
mod lower;
mod mode;
mod names;
mod number;
mod rename;
mod room;
mod table;
mod xattr;

pub use attributes::{Change, Kill, Time};
pub use changes::Changes;
pub use data::Seek;
pub use directory::NAME_MAX;
pub use filesystem::Filesystem;
pub use inode::New;
pub use listing::Listed;
pub use lower::{Lower, LowerEntry};
pub use micabox_file::{FileKind, Stat, Timestamp};
pub use number::ROOT;
pub use rename::Mode as RenameMode;
pub use room::{Limits, Usage};
pub use rustix::io::Errno;
pub use xattr::SetMode;

type Result<T> = std::result::Result<T, Errno>;
