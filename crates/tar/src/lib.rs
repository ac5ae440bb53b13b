//! Tar archives as container images have them: one reader and one writer, everything that they
//! can say.
//!
//! * [`Reader`] walks an archive member by member: one pass, bounded memory, every dialect that
//!   occurs in layers. [`Members`] does the same with extended attributes decoded.
//! * [`Writer`] writes POSIX `pax`, with sparse files, times in nanoseconds, extended attributes
//!   and access control lists.
//!
//! The `tar` crate's reader is not used because it reads extension headers of any length into
//! memory, knows no PAX sparse files, no fractional or negative times, and takes the size
//! field of links and directories at face value where Go's `archive/tar`, and so Docker,
//! containerd and Podman, ignores it. Its `Builder` loses nanoseconds, attributes and holes.
//!
//! Sources of the rules: POSIX.1-2017 `pax`; the GNU tar manual, "Tar Internals"; Go's
//! `archive/tar` where the two leave something open. `docs/oci.md` lists the decisions.

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
