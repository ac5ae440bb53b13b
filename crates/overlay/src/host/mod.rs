//! Packs host files into archives, and unpacks archives into host files.

pub mod pack;
mod place;
pub mod unpack;
mod whole_file;

pub use place::{Place, place};
pub use whole_file::WholeFile;
