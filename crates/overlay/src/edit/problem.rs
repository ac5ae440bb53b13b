//! Why an edit failed.

use std::io;

use crate::lower::LowerError;
use crate::path::Loop;
use crate::view::ViewError;

/// Why an edit failed, as text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Problem(String);

impl From<micabox_ext4::Error> for Problem {
    fn from(error: micabox_ext4::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<LowerError> for Problem {
    fn from(error: LowerError) -> Self {
        Self(error.to_string())
    }
}

impl From<ViewError> for Problem {
    fn from(error: ViewError) -> Self {
        Self(error.to_string())
    }
}

impl From<Loop> for Problem {
    fn from(error: Loop) -> Self {
        ViewError::from(error).into()
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for Problem {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
