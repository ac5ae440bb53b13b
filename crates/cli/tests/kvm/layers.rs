//! Images on our own monitor: all layers in one region or on one disk, however many.
//! `scripts/test-kvm` runs these.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::support::{Home, image};

const WAYS: [(&str, &str); 4] = [
    ("pmem", "merged"),
    ("pmem", "stacked"),
    ("blk", "merged"),
    ("blk", "stacked"),
];

fn run<'a>(transport: &'a str, root: &'a str, script: &'a str) -> Vec<&'a str> {
    let ways = ["--transport", transport, "--root", root];
    let start = ["run", "--rm", "--backend", "kvm"];
    [&start[..], &ways, &["box", "sh", "-c", script]].concat()
}

/// The contents of every layer's file.
fn layers(home: &Home) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(directory: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                let hash = Sha256::digest(fs::read(&path).unwrap());
                found.insert(path, hash.to_vec());
            }
        }
    }
    let mut found = BTreeMap::new();
    for part in ["layers", "images"] {
        walk(&home.store().join(part), &mut found);
    }
    found
}

fn has_layers(count: usize, ways: &[(&str, &str)]) -> Home {
    let home = Home::empty();
    let mut layers = image::layers();
    layers.truncate(1);
    for number in 1..count {
        let text = format!("this is layer {number}");
        layers.push(image::one_file(
            &format!("srv/file-{number}"),
            text.as_bytes(),
        ));
    }
    home.load(&layers, &image::config());
    // Prints the number of the layers' files, their total size, and the number of devices.
    let script = "mkdir -p /srv; ls /srv | grep -c file-; cat /srv/file-* | wc -c; \
                  ls /sys/block | grep -cE '^(pmem|vd)'";
    let texts = (1..count).map(|number| format!("this is layer {number}").len());
    let (files, bytes) = (count - 1, texts.sum::<usize>());
    for (transport, root) in ways {
        let run = home.output(&run(transport, root, script));
        assert_eq!(
            run.stdout(),
            format!("{files}\n{bytes}\n1\n"),
            "{transport} {root}: {}",
            run.stderr()
        );
    }
    home.assert_nothing_left();
    home
}

#[test]
fn one_layer_is_one_device() {
    has_layers(1, &WAYS);
}

#[test]
fn thirty_layers_are_one_device() {
    has_layers(30, &WAYS[..2]);
}

#[test]
fn three_hundred_layers_are_one_device() {
    let home = has_layers(300, &WAYS[1..3]);
    // There are more layers than possible partitions.
    let script = &run("pmem", "stacked", "true");
    let refused = home.output_without_mapper(script).stderr();
    assert!(refused.contains("no device mapper"), "{refused}");
}

#[test]
fn without_a_device_mapper_layers_are_partitions() {
    let data: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let hash: String = Sha256::digest(&data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    for count in [1, 3, 30] {
        let home = Home::empty();
        // The second and third have a fixup on top of them.
        let mut layers = image::layers();
        layers.truncate(count);
        layers[0] = image::with_file(layers[0].clone(), "opt/data", &data);
        let more = (3..count).map(|number| image::one_file(&format!("opt/{number}"), b"x"));
        layers.extend(more);
        home.load(&layers, &image::config());
        // Prints: the kernel has no device mapper, all layers are there, the link to a lower
        // layer's file has its contents, and the page cache's growth in KiB after 7813 were read.
        let script = "grep -c device-mapper /proc/devices /proc/misc; ls /opt | grep -vc data; \
            cat /srv/hard 2>/dev/null | wc -c; grep ^Cached /proc/meminfo; \
            sha256sum < /opt/data; grep ^Cached /proc/meminfo";
        for transport in ["pmem", "blk"] {
            let run = home.output_without_mapper(&run(transport, "stacked", script));
            let text = run.ok();
            let lines: Vec<_> = text.lines().collect();
            let link = if count > 1 { "160000" } else { "0" };
            let files = count.saturating_sub(3).to_string();
            let expected = ["/proc/devices:0", "/proc/misc:0", &files, link];
            assert_eq!(lines[..4], expected, "{transport}, {count} layers");
            assert_eq!(lines[5], format!("{hash}  -"));
            let cached = [lines[4], lines[6]].map(|line| {
                let number = line.split_whitespace().nth(1).unwrap();
                number.parse::<i64>().unwrap()
            });
            let growth = cached[1] - cached[0];
            let is_mapped = transport == "pmem";
            assert_eq!(growth < 1000, is_mapped, "{transport}: {growth} kB");
        }
        // By now a template exists.
        let again = home.output_without_mapper(&run("pmem", "stacked", "head -c 4 /opt/data"));
        assert_eq!(again.ok(), "\0\0\0\0");
        home.assert_nothing_left();
    }
}

#[test]
fn a_guest_that_writes_to_its_region_changes_no_layer() {
    let home = Home::new();
    let before = layers(&home);
    // As root in its own machine it makes a device node and overwrites the device, past every
    // filesystem; what it reads afterwards is its own problem.
    let script = "mknod /dev/region b $(tr : ' ' < /sys/block/pmem0/dev) && \
                  dd if=/dev/zero of=/dev/region bs=1M count=2 conv=fsync 2>/dev/null; \
                  echo survived";
    for root in ["merged", "stacked"] {
        let written = home.output(&run("pmem", root, script));
        assert!(
            written.stdout().contains("survived"),
            "{}",
            written.stderr()
        );
        assert!(layers(&home) == before);
        let next = home.output(&run("pmem", root, "head -c 4 /srv/data"));
        assert_eq!(next.ok(), "0123");
    }
}

#[test]
fn a_filesystem_in_a_file_is_a_root() {
    let home = Home::new();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let (ext4, archive) = (at("root.ext4"), at("base.tar"));
    fs::write(&archive, &image::layers()[0]).unwrap();
    home.output(&["ext4", "mkfs", &ext4, "--size", "64M"]).ok();
    home.output(&["ext4", "import", &ext4, &archive]).ok();
    // A layer is an EROFS image; the one with busybox is the largest.
    let layers = layers(&home).into_keys();
    let erofs = layers.filter(|path| path.extension().is_some_and(|it| it == "erofs"));
    let erofs = erofs.max_by_key(|path| fs::metadata(path).unwrap().blocks());
    let erofs = erofs.unwrap().to_str().unwrap().to_owned();
    let run = |file: &str, transport: &str, script: &str| {
        let start = ["run", "--rm", "--backend", "kvm", "--transport", transport];
        let root = ["--root-disk", file, "sh", "-c", script];
        home.output(&[&start[..], &root].concat())
    };
    let before = [&ext4, &erofs].map(|file| fs::read(file).unwrap());
    for file in [&ext4, &erofs] {
        for (transport, device) in [("pmem", "pmem0"), ("blk", "vda")] {
            let script = "head -1 /etc/passwd; echo x > /new; cat /new; ls /sys/block";
            let text = run(file, transport, script).ok();
            assert!(
                text.starts_with("root:x:0:0:root:/root:/bin/sh\nx\n"),
                "{text}"
            );
            assert!(text.contains(device), "{text}");
        }
    }
    assert!(before == [&ext4, &erofs].map(|file| fs::read(file).unwrap()));
    let in_place = format!("{ext4}:rw");
    for count in ["1\n", "2\n"] {
        let text = run(&in_place, "auto", "echo x >> /count; wc -l < /count");
        assert_eq!(text.ok(), count);
    }
    assert_eq!(home.output(&["ext4", "check", &ext4]).ok(), "clean\n");
    home.assert_nothing_left();
}
