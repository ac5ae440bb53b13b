//! An image's disk, for people who start QEMU themselves: a VMDK descriptor of its files.
//!
//! QEMU's `block/vmdk.c` says which paths it accepts: they are relative to the descriptor, have no escapes, and end at a
//! quote.

use std::path::Path;

use micabox_disk::{SECTOR, flat_vmdk};

use super::error::{Error, Result};

/// A whole file as a part of a disk.
#[derive(Debug, Clone, Copy)]
pub struct Extent<'a> {
    /// Relative to the descriptor, or absolute.
    pub path: &'a Path,
    /// Length in bytes: a multiple of 512.
    pub length: u64,
}

/// Returns a descriptor of the disk that consists of `extents`, one after the other ([`flat_vmdk`]).
///
/// # Errors
///
/// A path that the format can't express, or a length that isn't whole sectors.
pub fn descriptor(extents: &[Extent<'_>]) -> Result<String> {
    let checked = extents.iter().map(|extent| {
        let path = checked_path(extent.path)?;
        if !extent.length.is_multiple_of(SECTOR) {
            return Err(invalid(format!(
                "`{path}` has {} bytes, not whole sectors",
                extent.length
            )));
        }
        Ok((path, extent.length))
    });
    Ok(flat_vmdk(checked.collect::<Result<Vec<_>>>()?))
}

fn checked_path(path: &Path) -> Result<&str> {
    let text = path
        .to_str()
        .ok_or_else(|| invalid(format!("`{}` is not UTF-8", path.display())))?;
    // QEMU takes the text before a colon for a protocol.
    let unsafe_start = text
        .split('/')
        .next()
        .is_some_and(|first| first.contains(':'));
    if text.is_empty() || text.contains(['"', '\n', '\r']) || unsafe_start {
        return Err(invalid(format!(
            "`{}` can't be written in it",
            text.escape_debug()
        )));
    }
    Ok(text)
}

fn invalid(problem: String) -> Error {
    Error::Invalid {
        what: "the VMDK descriptor",
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent_lines(extents: &[(&str, u64)]) -> Vec<String> {
        let extents: Vec<_> = extents
            .iter()
            .map(|&(path, length)| Extent {
                path: Path::new(path),
                length,
            })
            .collect();
        let descriptor = descriptor(&extents).unwrap();
        descriptor
            .lines()
            .filter(|line| line.starts_with("RW "))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn extents_count_in_sectors_and_are_at_most_2_gib() {
        let lines = extent_lines(&[("fsmeta.erofs", 2 << 20), ("../l.erofs", (5 << 30) + 512)]);
        assert_eq!(
            lines,
            [
                "RW 4096 FLAT \"fsmeta.erofs\" 0",
                "RW 4194304 FLAT \"../l.erofs\" 0",
                "RW 4194304 FLAT \"../l.erofs\" 4194304",
                "RW 2097153 FLAT \"../l.erofs\" 8388608",
            ]
        );
    }

    #[test]
    fn file_names_that_qemu_would_misread_are_refused() {
        for path in ["a\"b", "a\nb", "a\rb", "", "nbd:b"] {
            let extent = Extent {
                path: Path::new(path),
                length: 512,
            };
            assert!(descriptor(&[extent]).is_err(), "{path}");
        }
        let half = Extent {
            path: Path::new("a"),
            length: 513,
        };
        assert!(descriptor(&[half]).is_err());
    }
}
