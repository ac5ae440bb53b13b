//! Trees that a filesystem can be over: an image, a disk, or a sandbox's view of both.

mod alone;
mod merged;

use std::sync::Arc;

use micabox_memfs::{Errno, Lower};
use micabox_overlay::lower;
use micabox_overlay::upper::Upper;
use micabox_overlay::words::{is_marker, unescape_xattr_name};

pub use merged::Merged;

/// Returns a tree that is a filesystem as it is: an image's, or any other EROFS or ext4 filesystem.
#[must_use]
pub fn alone(tree: Arc<lower::Lower>) -> Arc<dyn Lower> {
    Arc::new(alone::Alone::new(tree, Shown::AsItIs))
}

/// Returns the same as overlayfs shows it below changes: without its own attributes.
#[must_use]
pub fn overlaid(tree: Arc<lower::Lower>) -> Arc<dyn Lower> {
    Arc::new(alone::Alone::new(tree, Shown::Overlaid))
}

/// Returns the same for a container whose root is not the host's: without `trusted`
/// attributes, which root could not copy. `has_one_owner` makes all files root's.
#[must_use]
pub fn below_containers(tree: Arc<lower::Lower>, has_one_owner: bool) -> Arc<dyn Lower> {
    let shown = Shown::BelowContainers { has_one_owner };
    Arc::new(alone::Alone::new(tree, shown))
}

/// What is shown of a filesystem.
#[derive(Clone, Copy, Debug)]
enum Shown {
    AsItIs,
    /// Without overlayfs's own attributes.
    Overlaid,
    BelowContainers {
        has_one_owner: bool,
    },
}

/// Returns the tree that a sandbox sees with the changes in `upper` over `tree`.
///
/// # Errors
/// `EIO` if the root can't be read.
pub fn merged(upper: Box<dyn Upper + Send>, tree: Arc<lower::Lower>) -> Result<Arc<Merged>, Errno> {
    Ok(Arc::new(Merged::new(upper, tree)?))
}

/// Returns attributes as overlayfs shows them: without its own, and with those that it escaped for an
/// overlay inside.
fn without_marks(xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let shown = xattrs.into_iter().filter(|(name, _)| !is_marker(name));
    shown
        .map(|(name, value)| (unescape_xattr_name(&name).into_vec(), value))
        .collect()
}

/// Returns what a program sees of an error: the tree is damaged, or its source can't be read.
fn io<E>(_: E) -> Errno {
    Errno::IO
}
