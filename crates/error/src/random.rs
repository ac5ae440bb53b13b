//! Random bytes, or the error of a sandbox that needs them.

use crate::Error;

/// Returns `N` random bytes of the kernel's.
///
/// # Errors
/// [`Error::System`].
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    micabox_ground::random().map_err(Error::system("reading random bytes"))
}
