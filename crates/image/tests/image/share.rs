//! Layers whose equal files share blocks, on a filesystem where files can: XFS.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use micabox_image::Store;
use micabox_image::progress::Silent;
use micabox_image::store::{Image, PackChoice, Patience};
use micabox_testing::mounts::Mount;
use micabox_testing::run;
use tempfile::TempDir;

use crate::files::noise;
use crate::layer::TestStore;
use crate::layer::archive::Archive;
use crate::layer::image::publish;

/// Bytes of the file that all layers have.
const LARGE: usize = 3_000_000;

/// A filesystem in a file.
struct Disk {
    mount: Mount,
    _file: TempDir,
}

fn xfs() -> Disk {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("xfs");
    File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let mut mkfs = Command::new("mkfs.xfs");
    mkfs.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    run(mkfs.arg("-q").arg(&path));
    Disk {
        mount: Mount::file("xfs", &path, "rw"),
        _file: directory,
    }
}

fn store_on(disk: &Disk) -> TestStore {
    let directory = TempDir::new_in(disk.mount.path()).unwrap();
    let store = Store::open(&directory.path().join("store")).unwrap();
    TestStore { store, directory }
}

fn images(store: &TestStore) -> Vec<Image> {
    let large = noise(1, LARGE);
    let names = ["one", "two", "three"].into_iter();
    let made = names.zip(7..).map(|(name, seed)| {
        let own = noise(seed, 200_000);
        let archive = Archive::new()
            .file(&format!("before-{name}"), own)
            .file("small", "of one block")
            .file("large", &large)
            .finish();
        publish(store, &[archive], name)
    });
    made.collect()
}

/// Returns how many bytes of a file others have in common with it, as filefrag sees it.
fn common(path: &Path) -> u64 {
    let mut filefrag = Command::new("filefrag");
    filefrag.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    let text = run(filefrag.args(["-b4096", "-v"]).arg(path));
    let shared = text.lines().filter(|line| line.contains("shared"));
    let blocks = shared.map(|line| {
        // Number: logical range: physical range: blocks: ...
        let blocks = line.split(':').nth(3).unwrap().trim();
        blocks.parse::<u64>().unwrap()
    });
    blocks.sum::<u64>() * 4096
}

#[test]
#[ignore = "needs root"]
fn equal_files_of_layers_share_their_blocks() {
    let disk = xfs();
    let store = store_on(&disk);
    let images = images(&store);
    let paths: Vec<_> = images.iter().map(|image| &image.layers[0].path).collect();
    let before: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(paths.iter().all(|path| common(path) == 0));
    // Who has an image open keeps that one.
    let open = File::open(paths[1]).unwrap();

    let bytes = store.share_blocks().unwrap();
    assert!(
        bytes >= 2 * LARGE as u64 && bytes < 2 * LARGE as u64 + 10_000,
        "{bytes}"
    );
    assert_eq!(store.usage().unwrap().common_size, bytes);
    for (path, before) in paths.iter().zip(&before) {
        assert!(common(path) >= LARGE as u64, "{}", path.display());
        assert!(fs::read(path).unwrap() == *before);
    }
    let mut found = vec![0; before[1].len()];
    open.read_exact_at(&mut found, 0).unwrap();
    assert!(found == before[1]);
    assert_eq!(store.fsck(false).unwrap().findings, []);

    // Once more, and no image is made again: also after another layer is gone.
    let inodes = || {
        let inodes = paths
            .iter()
            .map(|path| fs::metadata(path).map(|file| file.ino()).ok());
        inodes.collect::<Vec<_>>()
    };
    let made = inodes();
    assert_eq!(store.share_blocks().unwrap(), bytes);
    assert_eq!(inodes(), made);
    store.remove("three").unwrap();
    assert_eq!(store.usage().unwrap().common_size, 0);
    let two = store.share_blocks().unwrap();
    assert!(two < bytes, "{two}");
    assert_eq!(inodes().iter().flatten().count(), 2);

    // A layer that is unpacked has blocks of its own until then.
    let all = PackChoice::Images(vec![images[0].manifest_digest]);
    store.pack(&all, Patience::Wait, &Silent).unwrap();
    store.unpack(&images[0], &Silent).unwrap();
    assert_eq!(common(paths[0]), 0);
    assert_eq!(store.share_blocks().unwrap(), two);
    assert!(common(paths[0]) >= LARGE as u64);
    assert!(fs::read(paths[0]).unwrap() == before[0]);
    assert_eq!(store.fsck(false).unwrap().findings, []);
}

#[test]
#[ignore = "needs root"]
fn a_layer_that_a_sandbox_uses_stays_the_file_that_its_machines_map() {
    let disk = xfs();
    let store = store_on(&disk);
    let images = images(&store);
    let inodes = || {
        let layers = images.iter().map(|image| &image.layers[0].path);
        let inodes = layers.map(|path| fs::metadata(path).unwrap().ino());
        inodes.collect::<Vec<_>>()
    };
    let before = inodes();
    for (number, image) in images.iter().enumerate() {
        let sandbox = format!("sandbox-{number}");
        store.lease(&sandbox, &[image.manifest_digest]).unwrap();
    }
    assert_eq!(store.share_blocks().unwrap(), 0);
    assert_eq!(inodes(), before);
    for number in 0..images.len() {
        let lease = store.root().join(format!("sandboxes/sandbox-{number}"));
        fs::remove_dir_all(lease).unwrap();
    }
    assert!(store.share_blocks().unwrap() >= 2 * LARGE as u64);
    // The first one is the source of the others.
    let made = inodes().into_iter().zip(before);
    assert_eq!(made.filter(|(now, then)| now != then).count(), 2);
}

#[test]
#[ignore = "needs root"]
fn a_damaged_file_takes_the_place_of_no_other() {
    let disk = xfs();
    let store = store_on(&disk);
    let images = images(&store);
    for image in &images {
        let path = &image.layers[0].path;
        let before = fs::read(path).unwrap();
        let mut damaged = before.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        fs::write(path, &damaged).unwrap();
        store.share_blocks().unwrap();
        assert!(fs::read(path).unwrap() == damaged);
        let findings = store.fsck(false).unwrap().findings;
        let layers = findings
            .iter()
            .filter(|found| found.path.starts_with("layers"));
        assert_eq!(layers.count(), 1, "{findings:?}");
        fs::write(path, &before).unwrap();
    }
    store.share_blocks().unwrap();
    assert_eq!(store.fsck(false).unwrap().findings, []);
}

#[test]
fn where_files_cannot_share_blocks_no_layer_is_made_again() {
    let in_memory = TempDir::new_in("/dev/shm").unwrap();
    let store = TestStore {
        store: Store::open(&in_memory.path().join("store")).unwrap(),
        directory: in_memory,
    };
    let images = images(&store);
    let inode = || fs::metadata(&images[1].layers[0].path).unwrap().ino();
    let before = inode();
    assert_eq!(store.share_blocks().unwrap(), 0);
    assert_eq!(inode(), before);
}
