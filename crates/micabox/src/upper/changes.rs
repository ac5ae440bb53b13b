//! What a disk says of an image: the difference, as `docker diff` shows it.
//!
//! It goes from one process to another as names, and paths are put together at the end: there
//! may be thousands of directories in each other.

use std::fmt;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::walk::{Disk, Walk, WalkError, is_whiteout};
use crate::base::Lower;
use crate::jailed::records;

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

/// A change without its path.
#[derive(Debug, Serialize, Deserialize)]
struct Step {
    kind: ChangeKind,
    /// How many directories it is below the root. Each was told before.
    depth: u32,
    name: Vec<u8>,
}

/// Why there are no changes to tell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangesError {
    #[error(transparent)]
    Walk(#[from] WalkError),
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Writes everything in which the disk differs from `lower` as records, each directory before
/// what is in it, names in the order of their bytes.
pub(crate) fn write_changes(
    disk: Disk,
    lower: Lower,
    output: &mut impl Write,
) -> Result<(), ChangesError> {
    let Some((mut walk, _)) = Walk::start(disk, lower)? else {
        return Ok(());
    };
    while let Some(step) = walk.next()? {
        let kind = match (&step.upper, &step.below) {
            (None, _) => ChangeKind::Deleted,
            (Some(stat), below) if is_whiteout(stat) => match below {
                Some(_) => ChangeKind::Deleted,
                None => continue,
            },
            (Some(_), Some(_)) => ChangeKind::Changed,
            (Some(_), None) => ChangeKind::Added,
        };
        let (name, depth) = walk.name();
        let step = Step {
            kind,
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
            name: name.to_vec(),
        };
        records::write(output, &step)?;
    }
    Ok(output.flush()?)
}

/// Reads them, and calls `each` with every change.
pub(crate) fn read_changes(
    input: &mut impl Read,
    mut each: impl FnMut(Change<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "what is told makes no sense");
    let mut path = Vec::new();
    // Where the path ends in each directory on the way.
    let mut ends: Vec<usize> = Vec::new();
    while let Some(step) = records::read::<Step>(input)? {
        let depth = step.depth as usize;
        let end = match depth.checked_sub(1) {
            Some(above) => *ends.get(above).ok_or_else(wrong)?,
            None => 0,
        };
        ends.truncate(depth);
        path.truncate(end);
        path.push(b'/');
        path.extend_from_slice(&step.name);
        if path.len() > PATH_MAX {
            return Err(wrong());
        }
        ends.push(path.len());
        let kind = step.kind;
        each(Change { kind, path: &path })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(steps: &[(ChangeKind, u32, &str)]) -> io::Result<Vec<String>> {
        let mut told = Vec::new();
        for &(kind, depth, name) in steps {
            let name = name.as_bytes().to_vec();
            records::write(&mut told, &Step { kind, depth, name })?;
        }
        let mut found = Vec::new();
        let each = |change: Change<'_>| {
            found.push(format!("{} {}", change.kind, change.path.escape_ascii()));
            Ok(())
        };
        read_changes(&mut &*told, each)?;
        Ok(found)
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
        read(&[(Added, 1, "a")]).unwrap_err();
        read(&[(Added, 0, "a"), (Added, u32::MAX, "b")]).unwrap_err();
    }
}
