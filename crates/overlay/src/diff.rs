//! Lists what an upper layer changes, like `docker diff`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::upper::Upper;
use crate::view::{View, ViewError};
use crate::walk::{Scope, Walk};

/// Longest path that is assembled, in bytes.
const PATH_MAX: usize = 256 << 20;

/// A path that differs from the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'p> {
    /// Kind of change.
    pub kind: ChangeKind,
    /// The path: absolute, in Linux's bytes.
    pub path: &'p [u8],
}

/// How a path differs from the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The image has no file at the path.
    Added,
    /// It is another file, has other contents or attributes, or has changes below it.
    Changed,
    /// The file, and all below it, is deleted.
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

/// A change without its path: directories may be nested thousands deep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Kind of change.
    pub kind: ChangeKind,
    /// Number of directories between the root and it. Each of them is an earlier step.
    pub depth: u32,
    /// The last name of its path.
    pub name: Vec<u8>,
}

/// Calls `each` for every change of the lower layer's tree, each directory before its entries,
/// names in the order of their bytes.
///
/// # Errors
/// [`ViewError`], and those of `each`.
pub fn diff<U: Upper, E: From<ViewError>>(
    view: &mut View<U>,
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

/// Assembles the paths of steps.
#[derive(Debug, Default)]
pub struct Paths {
    path: Vec<u8>,
    /// Length of the path up to each directory in it.
    ends: Vec<usize>,
}

impl Paths {
    /// Returns the change of a step; `None` if a directory on its path wasn't an earlier step, or
    /// if the path is too long for memory.
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
