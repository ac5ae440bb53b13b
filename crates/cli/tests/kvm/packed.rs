//! Images that start packed, on our own monitor. `scripts/test-kvm` runs these.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::{Home, image, wait_until};

/// Bytes of a file that hardly compress, over more frames than one, and as many that compress well.
const LENGTH: usize = 2 << 20;

/// Prints each file's checksum.
const ALL: &str = "find /bin/busybox /srv -type f | sort | xargs md5sum";

fn home() -> Home {
    let mut state = 1_u32;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    let random: Vec<u8> = random.take(LENGTH).collect();
    let text = b"packed and read\n".repeat(LENGTH / 16);
    let mut layers = image::layers();
    layers.push(image::one_file("srv/random", &random));
    layers.push(image::one_file("srv/text", &text));
    let home = Home::empty();
    home.load(&layers, &image::config());
    home
}

fn tree(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let below = paths.flat_map(|path| match path.is_dir() {
        true => tree(&path),
        false => vec![path],
    });
    below.collect()
}

fn pack(home: &Home) -> usize {
    let report = home.output(&["store", "pack", "--all", "--json"]).json();
    report["packed"].as_array().unwrap().len()
}

fn packed(home: &Home) -> u64 {
    let usage = home.output(&["store", "df", "--json"]).json();
    usage["packed_layers"].as_u64().unwrap()
}

#[test]
fn what_a_machine_reads_of_a_packed_image_is_what_is_in_it() {
    let home = home();
    let run = |words: &[&str]| {
        let start = ["run", "--rm", "--backend", "kvm", "--cold"];
        home.output(&[&start, words, &["box", "sh", "-c", ALL]].concat())
            .ok()
    };
    let before = run(&[]);
    assert!(before.contains("/srv/random"), "{before}");
    for transport in ["pmem", "blk"] {
        for root in ["merged", "stacked"] {
            // A short run may have ended before the image was unpacked.
            pack(&home);
            assert_ne!(packed(&home), 0);
            let after = run(&["--transport", transport, "--root", root]);
            assert_eq!(after, before, "{transport} {root}");
            // The files' server ends with the last that has one open.
            home.assert_nothing_left();
        }
    }
}

#[test]
fn all_machines_of_a_packed_image_have_one_server_and_a_later_one_needs_none() {
    let home = home();
    assert!(pack(&home) > 0);
    let start = |name| {
        let start = [
            "run",
            "-d",
            "-q",
            "--backend",
            "kvm",
            "--cold",
            "--name",
            name,
        ];
        home.output(&[&start[..], &["box", "sleep", "1000"]].concat())
            .ok();
    };
    assert_ne!(packed(&home), 0);
    start("first");
    assert_eq!(home.held_images().len(), 1);
    wait_until("the image is unpacked", || packed(&home) == 0);
    start("second");
    assert_eq!(home.held_images().len(), 1);
    let read = |name| home.output(&["exec", name, "sh", "-c", ALL]).ok();
    assert_eq!(read("first"), read("second"));
    home.output(&["rm", "-f", "first"]).ok();
    wait_until("no image is held", || home.held_images().is_empty());
    read("second");
    home.output(&["rm", "-f", "second"]).ok();
    home.assert_nothing_left();
}

#[test]
fn of_a_damaged_chunk_no_byte_is_read() {
    let home = home();
    assert!(pack(&home) > 0);
    // The largest pack has the file that hardly compresses.
    let packs = tree(&home.store().join("packs"));
    let length = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let largest = packs.into_iter().max_by_key(length).unwrap();
    let file = File::options().write(true).open(&largest).unwrap();
    file.write_all_at(&[0x5a; 4096], length(&largest) / 2)
        .unwrap();
    for transport in ["pmem", "blk"] {
        let start = [
            "run",
            "--rm",
            "--backend",
            "kvm",
            "--cold",
            "--transport",
            transport,
        ];
        let read = [
            "box",
            "sh",
            "-c",
            "md5sum /srv/text; md5sum /srv/random && echo all",
        ];
        let output = home.output(&[&start[..], &read].concat());
        assert_ne!(output.code(), 0, "{}", output.stderr());
        if transport == "pmem" {
            // An I/O error is the guest's to handle, and a page that does not come is its end.
            assert!(
                output.stderr().contains("`mica store fsck`"),
                "{}",
                output.stderr()
            );
        }
        assert!(!output.stdout().contains("random"), "{}", output.stdout());
    }
    let events = [
        "events",
        "--since",
        "1h",
        "--until",
        "0s",
        "--filter",
        "type=image",
    ];
    let events = home.output(&events).ok();
    assert_eq!(events.matches(" read_error (image=").count(), 2, "{events}");
    assert!(
        events.contains("can't be inflated") || events.contains("other bytes"),
        "{events}"
    );
    assert_eq!(home.output(&["store", "fsck"]).code(), 1);
}
