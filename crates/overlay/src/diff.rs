//! What an upper layer changes, as `docker diff` shows it.

use std::fmt;

use micabox_ext4::BlockDevice;
use serde::{Deserialize, Serialize};

use crate::view::{View, ViewError};
use crate::walk::{Scope, Walk};

/// Most bytes of a path that are put together.
const PATH_MAX: usize = 256 << 20;

/// One path that is not as the image has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'p> {
    /// In which way.
    pub kind: ChangeKind,
    /// Where: absolute, bytes as Linux has them.
    pub path: &'p [u8],
}

/// How a path differs from the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The image has nothing there.
    Added,
    /// It is another one, has other contents or attributes, or has changes below it.
    Changed,
    /// It is gone, and all below it.
    Deleted,
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "A",
            Self::Changed => "C",
            Self::Deleted => "D",
        })
    }
}

/// A change without its path: there may be thousands of directories in each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// In which way.
    pub kind: ChangeKind,
    /// How many directories it is below the root. Each of them is a step before.
    pub depth: u32,
    /// The last name of its path.
    pub name: Vec<u8>,
}

/// Calls `each` with everything in which the layers together differ from the lower one, each
/// directory before what is in it, names in the order of their bytes.
///
/// # Errors
/// [`ViewError`], and those of `each`.
pub fn diff<D: BlockDevice, E: From<ViewError>>(
    view: &mut View<D>,
    mut each: impl FnMut(&Step) -> Result<(), E>,
) -> Result<(), E> {
    let root = view.root()?;
    if !root.is_upper() {
        return Ok(());
    }
    let mut walk = Walk::new(Scope::Changes, root, b"");
    while let Some(step) = walk.next(view)? {
        let slot = step.slot;
        let kind = match (&slot.upper, &slot.below) {
            (None, _) => ChangeKind::Deleted,
            (Some(_), Some(_)) if slot.is_whiteout() => ChangeKind::Deleted,
            (Some(_), None) if slot.is_whiteout() => continue,
            (Some(_), Some(_)) => ChangeKind::Changed,
            (Some(_), None) => ChangeKind::Added,
        };
        let (name, depth) = walk.name();
        each(&Step {
            kind,
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
            name: name.to_vec(),
        })?;
    }
    Ok(())
}

/// Puts the paths of steps together.
#[derive(Debug, Default)]
pub struct Paths {
    path: Vec<u8>,
    /// Where the path ends in each directory on the way.
    ends: Vec<usize>,
}

impl Paths {
    /// The change that a step is; none if no directory on its way came before, or if its path
    /// is longer than any that fits into memory.
    pub fn change(&mut self, step: &Step) -> Option<Change<'_>> {
        let depth = step.depth as usize;
        let end = match depth.checked_sub(1) {
            Some(above) => *self.ends.get(above)?,
            None => 0,
        };
        self.ends.truncate(depth);
        self.path.truncate(end);
        self.path.push(b'/');
        self.path.extend_from_slice(&step.name);
        if self.path.len() > PATH_MAX {
            return None;
        }
        self.ends.push(self.path.len());
        Some(Change {
            kind: step.kind,
            path: &self.path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(steps: &[(ChangeKind, u32, &str)]) -> Option<Vec<String>> {
        let mut paths = Paths::default();
        let each = steps.iter().map(|&(kind, depth, name)| {
            let name = name.as_bytes().to_vec();
            let change = paths.change(&Step { kind, depth, name })?;
            Some(format!("{} {}", change.kind, change.path.escape_ascii()))
        });
        each.collect()
    }

    #[test]
    fn paths_are_put_together_from_names() {
        use ChangeKind::{Added, Changed, Deleted};
        let steps = [
            (Changed, 0, "a"),
            (Added, 1, "bc"),
            (Deleted, 2, "d"),
            (Added, 1, "e"),
        ];
        assert_eq!(
            read(&steps).unwrap(),
            ["C /a", "A /a/bc", "D /a/bc/d", "A /a/e"]
        );
        assert_eq!(read(&[]).unwrap(), [""; 0]);
        assert!(read(&[(Added, 1, "a")]).is_none());
        assert!(read(&[(Added, 0, "a"), (Added, u32::MAX, "b")]).is_none());
    }
}
