//! Reads and writes a sandbox's changes: overlayfs's view of an upper layer over a lower one,
//! without a kernel.
//!
//! The upper layer is the directory `/root` of an ext4 filesystem, or what another reader ([`upper`])
//! has; the lower one is an EROFS image, another ext4 filesystem or a folder of the host. Source of the rules: Linux, `Documentation/filesystems/overlayfs.rst`;
//! a test compares this crate with the kernel.
//!
//! | module | what it does |
//! |---|---|
//! | [`words`] | names with which overlayfs and OCI layers mark deletions |
//! | [`upper`], [`lower`] | read the layers |
//! | [`view`] | looks up names and paths in both |
//! | [`walk`] | visits every visible or every changed name |
//! | [`diff`], [`layer`] | the changes as a list, as a layer of an OCI image |
//! | [`export`] | an ext4 filesystem, or some of its inodes, as an archive |
//! | [`pack`] | the visible files at a path, as an archive |
//! | [`edit`], [`patch`], [`unpack`] | write the upper layer as overlayfs would |
//! | [`host`] | host files as archives, and archives as host files |

#![forbid(unsafe_code)]

pub mod diff;
pub mod edit;
pub mod export;
pub mod host;
pub mod layer;
pub mod lower;
pub mod pack;
pub mod patch;
mod path;
pub mod unpack;
pub mod upper;
pub mod view;
pub mod walk;
pub mod words;

pub use path::through_links;
