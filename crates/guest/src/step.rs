//! Errors that name the step that failed and its target.

use std::io;

use micabox_wire::{BootFailed, BootPart};
use rustix::io::Errno;

use crate::mount;

/// Maximum number of bytes of a failure's parts; the whole must fit a message.
const MOST: usize = 8 * 1024;

/// A result that can be converted to a [`BootFailed`].
pub trait Step<T> {
    /// Converts an error, with the step and its target.
    fn step(self, step: &str, target: impl AsRef<str>) -> Result<T, BootFailed>;
}

impl<T> Step<T> for Result<T, Errno> {
    fn step(self, step: &str, target: impl AsRef<str>) -> Result<T, BootFailed> {
        self.map_err(|errno| failed(step, target.as_ref(), errno.raw_os_error(), ""))
    }
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: &str, target: impl AsRef<str>) -> Result<T, BootFailed> {
        self.map_err(|error| match error.raw_os_error() {
            Some(errno) => failed(step, target.as_ref(), errno, ""),
            None => failed(step, target.as_ref(), 0, &error.to_string()),
        })
    }
}

impl<T> Step<T> for Result<T, mount::Error> {
    fn step(self, step: &str, target: impl AsRef<str>) -> Result<T, BootFailed> {
        self.map_err(|error| {
            let errno = error.errno.raw_os_error();
            failed(step, target.as_ref(), errno, &error.log.join("\n"))
        })
    }
}

/// Creates a failure, with its texts cut to a length that fits a message.
pub fn failed(step: &str, target: &str, errno: i32, detail: &str) -> BootFailed {
    let cut = |text: &str| text.chars().take(MOST / 4).collect();
    BootFailed {
        step: step.to_owned(),
        target: cut(target),
        errno,
        detail: cut(detail),
        part: BootPart::Other,
    }
}

/// Marks a failure as one of a filesystem of the root.
pub fn of_root(failed: BootFailed) -> BootFailed {
    BootFailed {
        part: BootPart::Root,
        ..failed
    }
}
