//! An image of which a guest checks what it reads, and a disk that changes below it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::Home;
use super::packed::files;

/// A block that the disk changes, of `/srv/random`.
const CHANGED: usize = 100;

/// Prints the checksum of all before the 128 KiB of `/srv/random` in which a block changes, of all behind, and of another
/// file.
pub const AROUND: &str = "dd if=/srv/random bs=4096 count=96 2>/dev/null | md5sum; \
     dd if=/srv/random bs=4096 skip=128 2>/dev/null | md5sum; md5sum /srv/text";

/// Reads the block that changes.
pub const BLOCK: &str = "dd if=/srv/random bs=4096 skip=100 count=1 2>&1 | md5sum; \
     dd if=/srv/random bs=4096 skip=100 count=1 of=/dev/null 2>&1";

/// Changes a byte of a block of `/srv/random` on the disk, which a machine may have open.
pub fn change(home: &Home) {
    let contents = super::packed::random();
    let first = &contents[..4096];
    let layers = files(&home.store().join("layers"));
    let mut changed = 0;
    for layer in layers {
        let bytes = fs::read(&layer).unwrap();
        let mut blocks = bytes.chunks(4096);
        let Some(start) = blocks.position(|block| block == first) else {
            continue;
        };
        let file = File::options().write(true).open(&layer).unwrap();
        let at = (start + CHANGED) * 4096 + 7;
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
        changed += 1;
    }
    assert_eq!(changed, 1);
}

/// Returns whether a program says that it could not read.
pub fn is_io_error(said: &str) -> bool {
    ["I/O error", "Input/output error"]
        .iter()
        .any(|words| said.contains(words))
}
