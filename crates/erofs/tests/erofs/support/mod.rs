//! Support for several tests.
//!
//! * [`snapshot`] records a whole tree, from a mount or from an image, and compares two;
//! * [`spec`] describes a tree to be written;
//! * [`model`] computes what a stack of layers must look like, and [`random`] generates stacks;
//! * [`tools`] runs erofs-utils.

pub mod model;
pub mod random;
pub mod snapshot;
pub mod spec;
pub mod tools;
