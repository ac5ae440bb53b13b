//! Why operations on files fail.

use std::io;

use micabox_wire::files::{FileFailed, FileReply};
use rustix::io::Errno;

use crate::errno::describe;

/// Why an operation failed.
#[derive(Debug)]
pub struct Failed {
    /// The file, if it is not the one of the request.
    pub path: Vec<u8>,
    /// The kernel's error, if it is one.
    pub errno: Option<Errno>,
    pub message: String,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self {
            path: Vec::new(),
            errno: Some(errno),
            message: describe(errno),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => Self::new(error.to_string()),
        }
    }
}

impl From<micabox_tree::Error> for Failed {
    fn from(error: micabox_tree::Error) -> Self {
        match error {
            micabox_tree::Error::File { path, source } => Self {
                path,
                ..source.into()
            },
            error => Self::new(error.to_string()),
        }
    }
}

impl From<Failed> for FileReply {
    fn from(failed: Failed) -> Self {
        Self::Failed(FileFailed {
            path: failed.path,
            errno: failed.errno.map_or(0, Errno::raw_os_error),
            message: failed.message,
        })
    }
}

impl Failed {
    /// Creates an error that is not the kernel's.
    pub fn new(message: String) -> Self {
        Self {
            path: Vec::new(),
            errno: None,
            message,
        }
    }

    /// Names the file, if no other is named.
    pub fn of(self, path: &[u8]) -> Self {
        if self.path.is_empty() {
            Self {
                path: path.to_vec(),
                ..self
            }
        } else {
            self
        }
    }

    /// Creates the kernel's error of a file.
    pub fn at(path: &[u8], errno: Errno) -> Self {
        Self {
            path: path.to_vec(),
            ..errno.into()
        }
    }
}
