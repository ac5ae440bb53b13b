//! Support for several tests. Tests of other crates include it by path.
//!
//! * [`snapshot`] records a whole tree, from a mount or from an image, and compares two;
//! * [`spec`] describes a tree to be written;
//! * [`model`] computes what a stack of layers must look like, and [`random`] generates stacks;
//! * [`tools`] runs erofs-utils;
//! * [`kernel`] mounts, as root.

#![allow(dead_code, missing_docs)]

pub mod kernel;
pub mod model;
pub mod random;
pub mod snapshot;
pub mod spec;
pub mod tools;
