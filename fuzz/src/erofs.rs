//! All operations that a program may do with an image, on hostile images.

use std::io::Cursor;

use micabox_erofs::merge::{Layer, Merge};
use micabox_erofs::{Concat, Reader, check};

/// Blocks to which images are padded in a merge.
const ALIGNMENT: u32 = 1;

/// Opens, checks, reads and merges one image.
pub fn image(bytes: &[u8]) {
    let image = without_checksum(bytes);
    let findings = check::check(&image);
    let Ok(reader) = Reader::open(&image) else {
        assert!(!findings.is_empty(), "unreadable, and nothing was found");
        return;
    };
    let walked = read_all(&reader);
    if findings.is_empty() {
        walked.expect("a sound image can be read");
    }
    stack(&[image]);
}

/// Merges images. The result must be sound, whatever the input.
pub fn stack(images: &[Vec<u8>]) {
    let images: Vec<Vec<u8>> = images.iter().map(|image| without_checksum(image)).collect();
    let layers: Vec<_> = images
        .iter()
        .map(|image| Layer {
            image,
            tag: b"layer",
        })
        .collect();
    let Ok(merge) = Merge::of(&layers, ALIGNMENT) else {
        return;
    };
    let empty = || Cursor::new(Vec::new());
    for written in [
        merge.write_fsmeta(empty(), [1; 16]),
        merge.write_fixup(empty(), [2; 16]),
    ] {
        let Ok((image, _)) = written else {
            continue;
        };
        let image = image.into_inner();
        assert_eq!(check::check(&image), [], "an unsound image was written");
        let all = std::iter::once(&image).chain(&images);
        let flat = Concat::new(all, u64::from(ALIGNMENT) * 4096).expect("lengths are known");
        let reader = Reader::open(flat).expect("a sound image can be opened");
        read_all(&reader).expect("a sound image can be read");
    }
}

/// Reads all metadata, and the start and end of each file.
fn read_all<R: micabox_erofs::ReadAt>(reader: &Reader<R>) -> micabox_erofs::Result<()> {
    use micabox_erofs::format::FileType;
    let mut buf = vec![0; 10_000];
    reader.walk(|path, inode| {
        assert!(path.starts_with(b"/") && !path.contains(&0));
        reader.xattrs(inode)?;
        match inode.kind {
            FileType::Symlink => {
                let target = reader.read_link(inode)?;
                assert!((1..4096).contains(&target.len()));
            }
            FileType::Directory => {
                if let Some(entry) = reader.read_dir(inode)?.last() {
                    let found = reader.lookup(inode, &entry.name)?;
                    assert_eq!(found.as_ref(), Some(entry), "listed but not found");
                }
            }
            FileType::Regular => {
                let extents = reader.extents(inode)?;
                let length: u64 = extents.iter().map(|extent| extent.length).sum();
                assert_eq!(length, inode.size);
                for offset in [0, inode.size.saturating_sub(5000), inode.size] {
                    // Fails for data on other devices than this one.
                    let _ = reader.read(inode, offset, &mut buf);
                }
            }
            _ => {}
        }
        Ok(())
    })
}

/// Returns the image without the superblock's flag for a checksum, which mutation always breaks
/// first.
fn without_checksum(bytes: &[u8]) -> Vec<u8> {
    const FEATURES: usize = 1024 + 8;
    let mut image = bytes.to_vec();
    if let Some(features) = image.get_mut(FEATURES) {
        *features &= !1;
    }
    image
}
