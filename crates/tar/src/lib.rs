//! Tar archives as in container images: one reader and one writer for everything that such archives
//! can express.
//!
//! * [`Reader`] walks an archive member by member: one pass, bounded memory, every dialect that
//!   occurs in layers. [`Members`] does the same with extended attributes decoded.
//! * [`Writer`] writes POSIX `pax`, with sparse files, times in nanoseconds, extended attributes
//!   and access control lists.
//!
//! The `tar` crate is not used: its reader reads extension headers of any length into
//! memory, does not support PAX sparse files or fractional and negative times, and uses the size
//! field of links and directories, which Go's `archive/tar`, and so Docker, containerd and Podman,
//! ignores; its `Builder` loses nanoseconds, attributes and holes.
//!
//! Sources of the rules: POSIX.1-2017 `pax`; the GNU tar manual, "Tar Internals"; Go's
//! `archive/tar` for cases that the two leave undefined. `docs/oci.md` lists the decisions.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod acl;
mod error;
mod header;
mod limits;
mod member;
mod members;
mod pax;
mod reader;
mod sparse;
mod ustar;
pub mod whiteout;
mod writer;
mod xattr;

pub use error::{Error, Limit, printable};
pub use limits::Limits;
pub use member::{Attributes, Kind, Member};
pub use members::{Members, MembersError};
pub use micabox_file::{Segment, Timestamp};
pub use pax::Records;
pub use reader::{Body, Reader};
pub use writer::Writer;
pub use xattr::{XattrError, Xattrs};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
