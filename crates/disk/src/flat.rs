//! Writes descriptors of VMDK, with which QEMU reads several files as one disk.
//!
//! Source: VMware's "Virtual Disk Format 5.0".

use crate::SECTOR;

/// The longest extent that the format's flat type allows, in bytes.
const LONGEST: u64 = 2 << 30;

/// Returns a descriptor of the disk that consists of files, one after the other: each with its path, relative to the
/// descriptor or absolute, and its length in bytes. A path has no quote and no line break, as it is written as it is.
/// What is behind a file's last whole sector is left out.
///
/// A comment precedes the extents: at a blank line QEMU reads the next one, and would read the first extent twice. The
/// access word is `RW` although the disk must not be written to, because QEMU ignores extents with another one: open the
/// disk with `readonly=on`.
pub fn flat_vmdk<P: AsRef<str>>(files: impl IntoIterator<Item = (P, u64)>) -> String {
    let mut extents = String::new();
    let mut sectors = 0_u64;
    for (path, length) in files {
        let (path, length) = (path.as_ref(), length / SECTOR * SECTOR);
        let mut at = 0;
        while at < length {
            let part = (length - at).min(LONGEST);
            extents += &format!("RW {} FLAT \"{path}\" {}\n", part / SECTOR, at / SECTOR);
            at += part;
        }
        sectors = sectors.saturating_add(length / SECTOR);
    }
    // A geometry is required, but its numbers don't matter to a virtio disk.
    let cylinders = sectors.div_ceil(16 * 63).clamp(1, 65535);
    format!(
        "# Disk DescriptorFile\n\
         version=1\n\
         CID=fffffffe\n\
         parentCID=ffffffff\n\
         createType=\"twoGbMaxExtentFlat\"\n\
         \n\
         # Extent description\n\
         {extents}\
         \n\
         # The Disk Data Base\n\
         ddb.virtualHWVersion = \"4\"\n\
         ddb.geometry.cylinders = \"{cylinders}\"\n\
         ddb.geometry.heads = \"16\"\n\
         ddb.geometry.sectors = \"63\"\n\
         ddb.adapterType = \"ide\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_extent_follows_a_blank_line() {
        let text = flat_vmdk([("/a", 4096)]);
        let extent = text.find("RW ").unwrap();
        let before = text.get(..extent).unwrap();
        assert!(
            before.ends_with('\n') && !before.ends_with("\n\n"),
            "{text}"
        );
    }

    #[test]
    fn a_long_file_is_several_extents() {
        let files = [("/a", 4096), ("/b", (4 << 30) + 1000), ("/c", 0)];
        let text = flat_vmdk(files);
        let extents: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("RW "))
            .collect();
        assert_eq!(
            extents,
            [
                r#"RW 8 FLAT "/a" 0"#,
                r#"RW 4194304 FLAT "/b" 0"#,
                r#"RW 4194304 FLAT "/b" 4194304"#,
                r#"RW 1 FLAT "/b" 8388608"#,
            ]
        );
    }
}
