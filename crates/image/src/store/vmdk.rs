//! VMDK descriptors, with which QEMU reads several files as one disk.
//!
//! Source: VMware's "Virtual Disk Format 5.0", and QEMU's `block/vmdk.c` for what QEMU accepts:
//! paths are relative to the descriptor, have no escapes, and end at a quote.

use std::path::Path;

use super::error::{Error, Result};

const SECTOR: u64 = 512;
/// The longest extent that the format's flat type allows, in bytes.
const EXTENT_MAX: u64 = 2 << 30;

/// A whole file as a part of a disk.
#[derive(Debug, Clone, Copy)]
pub struct Extent<'a> {
    /// Relative to the descriptor, or absolute.
    pub path: &'a Path,
    /// Length in bytes: a multiple of 512.
    pub length: u64,
}

/// Returns a descriptor of the disk that consists of `extents`, one after the other.
///
/// The access word is `RW` although the disk must not be written to, because QEMU ignores extents
/// with another one: open the disk with `readonly=on`.
///
/// # Errors
///
/// A path that the format can't express, or a length that isn't whole sectors.
pub fn descriptor(extents: &[Extent<'_>]) -> Result<String> {
    let mut lines = String::new();
    let mut sectors = 0;
    for extent in extents {
        let path = checked_path(extent.path)?;
        if !extent.length.is_multiple_of(SECTOR) {
            return Err(invalid(format!(
                "`{path}` has {} bytes, not whole sectors",
                extent.length
            )));
        }
        let mut at = 0;
        while at < extent.length {
            let length = (extent.length - at).min(EXTENT_MAX);
            lines += &format!("RW {} FLAT \"{path}\" {}\n", length / SECTOR, at / SECTOR);
            at += length;
        }
        sectors += extent.length / SECTOR;
    }
    // A geometry is required, but its numbers don't matter to a virtio disk.
    let cylinders = sectors.div_ceil(16 * 63).clamp(1, 65535);
    Ok(format!(
        "# Disk DescriptorFile\n\
         version=1\n\
         CID=fffffffe\n\
         parentCID=ffffffff\n\
         createType=\"twoGbMaxExtentFlat\"\n\
         \n\
         # Extent description\n\
         {lines}\
         \n\
         # The Disk Data Base\n\
         ddb.virtualHWVersion = \"4\"\n\
         ddb.geometry.cylinders = \"{cylinders}\"\n\
         ddb.geometry.heads = \"16\"\n\
         ddb.geometry.sectors = \"63\"\n\
         ddb.adapterType = \"ide\"\n"
    ))
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
