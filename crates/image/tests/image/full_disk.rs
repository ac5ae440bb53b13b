//! A disk that fills up, at every possible size.

use std::path::Path;
use std::time::Duration;

use micabox_image::convert::{Reason, convert_layer};
use micabox_image::progress::Silent;
use micabox_image::store::{Error, PackChoice, Patience, PruneOptions};
use micabox_image::{Limits, Reference, Store};
use micabox_testing::mounts::Mount;
use micabox_testing::run;

use crate::layer::archive::Archive;
use crate::layer::image::documents;
use crate::layer::{assert_no_trace, expect};

fn archive() -> Vec<u8> {
    let noise: Vec<u8> = (0..600_000u64)
        .map(|i| (i.wrapping_mul(i ^ 0x9e37) >> 5) as u8 | 1)
        .collect();
    let mut archive = Archive::new().file("large", &noise);
    for i in 0..2000 {
        archive = archive.file(&format!("small/{i}-{}", "n".repeat(100)), "");
    }
    archive.finish()
}

#[test]
#[ignore = "needs root"]
fn a_full_disk_is_a_clear_error_and_leaves_nothing() {
    let disk = Mount::tmpfs("size=100k");
    let grow = |kilobytes: usize| {
        let size = format!("remount,size={kilobytes}k");
        run(std::process::Command::new("mount")
            .args(["-o", &size])
            .arg(disk.path()));
    };
    let archive = archive();
    let honest = expect(&archive, &archive);
    let store = Store::open(&disk.path().join("store")).unwrap();
    let (mut failures, mut kilobytes) = (0, 100);
    loop {
        grow(kilobytes);
        match convert_layer(&store, &archive[..], &honest, &Limits::default()) {
            Ok(_) => break,
            Err(error) => {
                assert!(
                    matches!(&error.reason, Reason::Store(Error::Full { .. })),
                    "at {kilobytes} KiB: {error}"
                );
                assert!(error.to_string().contains("no space left"));
                assert_unmarked(&store);
                failures += 1;
            }
        }
        kilobytes += 20;
    }
    assert!(failures > 30, "{failures}");
    assert!(store.fsck(false).unwrap().is_clean());

    // The image can't use the space of the conversion's temporary files.
    let used = rustix::fs::statvfs(disk.path()).unwrap();
    kilobytes = ((used.f_blocks - used.f_bfree) * used.f_frsize).div_ceil(1024) as usize;
    grow(kilobytes);
    let (manifest, config) = documents(std::slice::from_ref(&archive));
    let name: Reference = "image".parse().unwrap();
    let mut failures = 0;
    loop {
        match store.publish_image(&manifest, &config, std::slice::from_ref(&name)) {
            Ok(_) => break,
            Err(error) => {
                assert!(
                    matches!(error, Error::Full { .. }),
                    "at {kilobytes} KiB: {error}"
                );
                assert!(store.fsck(false).unwrap().is_clean());
                assert_eq!(
                    std::fs::read_dir(store.root().join("tmp")).unwrap().count(),
                    0
                );
                failures += 1;
            }
        }
        kilobytes += 8;
        grow(kilobytes);
    }
    assert!(failures > 3, "{failures}");
    assert!(store.fsck(false).unwrap().is_clean());
    store.image("image").unwrap();
}

/// Like [`assert_no_trace`], but the layer's index entry may be the file that did not fit.
fn assert_unmarked(store: &Store) {
    match store.fsck(false).unwrap().layers {
        0 => assert_no_trace(store),
        _ => assert_eq!(files(&store.root().join("blobs")), 0),
    }
}

fn files(directory: &Path) -> usize {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| if path.is_dir() { files(&path) } else { 1 })
        .sum()
}

#[test]
#[ignore = "needs root"]
fn on_a_full_disk_packed_layers_are_checked_and_removed_and_none_is_lost() {
    let disk = Mount::tmpfs("size=100m");
    let store = Store::open(&disk.path().join("store")).unwrap();
    let layer = |name: &str| {
        let lines = (0..200_000).map(|line| format!("line {line}\n"));
        let all: String = lines.collect();
        Archive::new()
            .file("all", &all)
            .file(name, all.replace("line", name))
            .finish()
    };
    let publish = |name: &str| {
        let archive = layer(name);
        convert_layer(
            &store,
            &archive[..],
            &expect(&archive, &archive),
            &Limits::default(),
        )
        .unwrap();
        let (manifest, config) = documents(std::slice::from_ref(&archive));
        let reference: Reference = name.parse().unwrap();
        store
            .publish_image(&manifest, &config, &[reference])
            .unwrap()
    };
    publish("one");
    publish("two");
    let all = PackChoice::UnusedFor(Duration::ZERO);
    assert_eq!(
        store
            .pack(&all, Patience::Wait, &Silent)
            .unwrap()
            .packed
            .len(),
        2
    );
    publish("three");
    let full = disk.path().join("full");
    let written = std::fs::write(&full, vec![1; 100 << 20]);
    assert!(written.is_err(), "the disk is full");
    for name in ["one", "two"] {
        let image = store.image(name).unwrap();
        let refused = store.unpack(&image, &Silent).unwrap_err();
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
    }
    let refused = store.pack(&all, Patience::Wait, &Silent).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert!(store.fsck(true).unwrap().is_clean());
    // Both share a pack, which there is no room to write anew.
    store.remove("two").unwrap();
    store.prune(&PruneOptions::default()).unwrap();
    std::fs::remove_file(&full).unwrap();
    assert!(store.fsck(false).unwrap().is_clean());
    store.unpack(&store.image("one").unwrap(), &Silent).unwrap();
}
