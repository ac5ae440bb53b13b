//! An image that is packed, and what reads it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Home, image, wait_until};

/// Bytes of a file, over more frames than one.
const LENGTH: usize = 3 << 20;

/// Prints each file's checksum.
pub const READ: &str = "find /bin/busybox /srv -type f | sort | xargs md5sum";

/// Makes a store with the image `box`, which is not packed yet.
pub fn home() -> Home {
    let random = random();
    let text = b"packed and read\n".repeat(LENGTH / 16);
    let mut layers = image::layers();
    layers.push(image::one_file("srv/random", &random));
    layers.push(image::one_file("srv/text", &text));
    let home = Home::empty();
    home.load(&layers, &image::config());
    home
}

/// What `/srv/random` has.
pub fn random() -> Vec<u8> {
    let mut state = 1_u32;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    // Two bits of eight say nothing: a layer that hardly becomes smaller is not packed.
    random.map(|byte| byte & 0x3f).take(LENGTH).collect()
}

/// Packs what is not in use. Returns how many layers are packed then.
pub fn pack(home: &Home) -> u64 {
    home.output(&["store", "pack", "--all", "--json"]).json();
    packed(home)
}

/// Returns how many layers are packed.
pub fn packed(home: &Home) -> u64 {
    let usage = home.output(&["store", "df", "--json"]).json();
    usage["packed_layers"].as_u64().unwrap()
}

/// Damages the largest pack, which has `/srv/random`.
pub fn damage(home: &Home) {
    let packs = files(&home.store().join("packs"));
    let length = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let largest = packs.into_iter().max_by_key(length).unwrap();
    let file = File::options().write(true).open(&largest).unwrap();
    let middle = length(&largest) / 2;
    file.write_all_at(&[0x5a; 4096], middle).unwrap();
}

/// Returns all files below a directory.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let below = paths.flat_map(|path| {
        if path.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    });
    below.collect()
}

/// Waits until `mica events` has an event of the layer that can't be read: the reader is told first.
pub fn assert_noted(home: &Home) {
    let filter = ["--filter", "type=image"];
    let words = [&["events", "--since", "1h", "--until", "0s"], &filter[..]].concat();
    wait_until("the reason is noted", || {
        let events = home.output(&words).ok();
        let mut lines = events.lines();
        lines.any(|line| line.contains(" read_error (image=") && line.contains("of pack"))
    });
}
