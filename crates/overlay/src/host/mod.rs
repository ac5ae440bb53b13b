//! Files of the host's as archives, and archives as files of the host's.

pub mod pack;
mod place;
pub mod unpack;
mod whole_file;

pub use place::{Place, place};
pub use whole_file::WholeFile;
