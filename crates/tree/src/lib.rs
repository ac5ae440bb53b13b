#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod pack;
mod root;
mod unpack;
mod xattr;

pub use pack::{LeftOut, Packing, Source, names};
pub use root::{Root, split};
pub use unpack::{Unpacked, Unpacker, Unpacking};

use std::io;

use rustix::io::Errno;

/// Why packing or unpacking failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read or written.
    #[error("{}: {source}", String::from_utf8_lossy(path))]
    File {
        /// Its path, as the archive has it.
        path: Vec<u8>,
        /// The system's error.
        source: io::Error,
    },
    /// The archive ends early, or a member of it is not valid.
    #[error("{0}")]
    Archive(String),
    /// The archive can't be written.
    #[error("writing the archive: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    fn file(path: &[u8], source: impl Into<io::Error>) -> Self {
        Self::File {
            path: path.to_vec(),
            source: source.into(),
        }
    }
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// How often an operation is tried again when another process has changed a name between two steps.
const TRIES: u32 = 32;

/// Tries an operation again while it fails with `is_race`.
fn again<T>(
    is_race: impl Fn(Errno) -> bool,
    mut operation: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    for _ in 1..TRIES {
        match operation() {
            Err(errno) if is_race(errno) => {}
            result => return result,
        }
    }
    operation()
}
