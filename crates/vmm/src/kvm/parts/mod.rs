//! Files of which only a part is here: a process of the host brings the rest, which this monitor asks for.
//!
//! ```text
//! server of the files --- asks, answers, sparse files ---+--- a disk's thread ([`reader`])
//!    ^                                                   '--- the pager's thread ([`pager`]): userfaultfd
//!    '--- started, connected to --- owner ([`outside`]) --- names, connections --- worker ([`line`])
//! ```
//!
//! The worker gets connected sockets and read-only descriptors of sparse files. What is in these was checked by their
//! server before it was written. A server that ends is asked for again, by way of the owner ([`losses`]).

#[cfg(feature = "test-kvm")]
pub mod alone;
mod line;
mod losses;
mod outside;
mod pager;
mod reader;
pub(crate) mod userfault;

pub(crate) use line::Line;
pub(crate) use outside::{names, open};
pub(crate) use pager::Pager;
pub(crate) use reader::PartReader;
