//! What a backend lacks on this machine.

use std::fmt;

/// Why a backend does not work on this machine, and what makes it work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    why: String,
    remedy: Option<String>,
}

impl Lack {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            remedy: None,
        }
    }

    /// Adds what makes the backend work: a sentence for the machine's user.
    pub(crate) fn remedy_is(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// Returns what makes the backend work, where that is known.
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}
