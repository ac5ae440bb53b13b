//! What a sandbox sees and changed: overlayfs's view of an upper layer over a lower one, without
//! a kernel.
//!
//! The upper layer is the directory `/root` of an ext4 filesystem, the lower one an EROFS image or
//! another ext4 filesystem. Source of the rules: Linux,
//! `Documentation/filesystems/overlayfs.rst`; a test holds this crate against the kernel.
//!
//! | module | what it does |
//! |---|---|
//! | [`words`] | the names that overlayfs and OCI layers mark with |
//! | [`lower`] | reads the lower layer |
//! | [`view`] | looks up names and paths in both |
//! | [`walk`] | visits every name at which the upper layer says something |
//! | [`diff`], [`layer`] | the changes as a list, as a layer of an OCI image |
//! | [`export`] | an ext4 filesystem, or some of its inodes, as an archive |
//! | [`pack`] | what is seen at a path, as an archive |
//! | [`edit`], [`patch`], [`unpack`] | writes the upper layer as overlayfs would |
//! | [`host`] | files of the host's as archives, and archives as files of the host's |

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
pub mod view;
pub mod walk;
pub mod words;
