//! Hash trees of images' disks, as cryptsetup's `veritysetup` sees them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use micabox_ground::hex;
use micabox_image::progress::Silent;
use micabox_image::store::{DiskTree, FsckOptions, Image, PackChoice, Patience, Repair};

use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::{TestStore, store};

fn layers() -> Vec<Vec<u8>> {
    let text = "what is below\n".repeat(40_000);
    let bottom = Archive::new().directory("./").file("srv/text", text);
    let top = Archive::new().file("srv/top", "t".repeat(5000));
    vec![bottom.finish(), top.finish()]
}

/// Writes what a machine has as one disk, and returns its path.
fn disk(store: &TestStore, image: &Image) -> PathBuf {
    let mut bytes = fs::read(&image.fsmeta).unwrap();
    for layer in &image.layers {
        bytes.extend(fs::read(&layer.path).unwrap());
    }
    let path = store.directory.path().join("disk");
    fs::write(&path, bytes).unwrap();
    path
}

/// Runs cryptsetup's program, which Debian keeps out of a user's PATH. Returns whether it has succeeded.
fn veritysetup(command: &str, disk: &PathBuf, tree: &PathBuf, more: &[&str]) -> bool {
    let output = Command::new("veritysetup")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .arg(command)
        .args([disk, tree])
        .args(more)
        .output()
        .expect("veritysetup is needed");
    output.status.success()
}

fn verifies(store: &TestStore, image: &Image, tree: &DiskTree) -> bool {
    let root = tree.root.hex();
    veritysetup("verify", &disk(store, image), &tree.path, &[&root])
}

#[test]
fn veritysetup_verifies_a_disk_with_the_tree_that_it_would_make() {
    let store = store();
    let image = publish(&store, &layers(), "image");
    let tree = store.disk_tree(&image).unwrap();
    let path = disk(&store, &image);
    assert_eq!(fs::metadata(&path).unwrap().len(), tree.blocks * 4096);
    assert!(verifies(&store, &image, &tree));

    let own = store.directory.path().join("own");
    let uuid = hex(image.fsmeta_uuid());
    let uuid = [
        &uuid[..8],
        &uuid[8..12],
        &uuid[12..16],
        &uuid[16..20],
        &uuid[20..],
    ]
    .join("-");
    let options = ["--salt=-", &format!("--uuid={uuid}")];
    assert!(veritysetup("format", &path, &own, &options));
    assert!(fs::read(&own).unwrap() == fs::read(&tree.path).unwrap());

    // A view has its own, over another fsmeta.
    let view = store.trimmed(&image, &"/srv/top".parse().unwrap()).unwrap();
    let other = store.disk_tree(&view).unwrap();
    assert_ne!((&other.path, other.root), (&tree.path, tree.root));
    assert!(verifies(&store, &view, &other));

    // Each is made once.
    let inode = |tree: &DiskTree| fs::metadata(&tree.path).unwrap().ino();
    let before = [inode(&tree), inode(&other)];
    assert_eq!(store.disk_tree(&image).unwrap(), tree);
    assert_eq!(store.disk_tree(&view).unwrap(), other);
    assert_eq!([inode(&tree), inode(&other)], before);
    assert_eq!(store.fsck(false).unwrap().findings, []);
}

#[test]
fn a_packed_image_has_the_tree_of_its_disk() {
    let store = store();
    let image = publish(&store, &layers(), "image");
    let whole = store.disk_tree(&image).unwrap();
    fs::remove_file(whole.path.with_extension("verity.json")).unwrap();
    let all = PackChoice::UnusedFor(Duration::ZERO);
    store.pack(&all, Patience::Wait, &Silent).unwrap();
    assert!(store.is_packed(&image.layers[0]));
    assert_eq!(store.disk_tree(&image).unwrap(), whole);
    assert!(store.is_packed(&image.layers[0]));
}

#[test]
fn a_disk_that_is_not_what_was_published_gets_no_tree() {
    let store = store();
    let image = publish(&store, &layers(), "image");
    let files = [&image.fsmeta, &image.layers[0].path, &image.layers[1].path];
    for file in files {
        let before = fs::read(file).unwrap();
        let mut bytes = before.clone();
        bytes[1500] ^= 1;
        fs::write(file, bytes).unwrap();
        let said = store.disk_tree(&image).unwrap_err().to_string();
        assert!(said.contains("its checksum is"), "{said}");
        assert!(said.contains(file.to_str().unwrap()), "{said}");
        fs::write(file, before).unwrap();
    }
    assert!(verifies(&store, &image, &store.disk_tree(&image).unwrap()));
}

#[test]
fn fsck_removes_a_damaged_tree_and_the_image_stays() {
    let store = store();
    let image = publish(&store, &layers(), "image");
    let view = store.trimmed(&image, &"/srv/top".parse().unwrap()).unwrap();
    for of in [&image, &view] {
        let tree = store.disk_tree(of).unwrap();
        let mut bytes = fs::read(&tree.path).unwrap();
        bytes[5000] ^= 1;
        fs::write(&tree.path, bytes).unwrap();
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let report = store.fsck_with(&options).unwrap();
        let [finding] = &report.findings[..] else {
            panic!("{report:#?}");
        };
        assert_eq!(finding.repair, Repair::RemoveTree);
        assert!(!tree.path.exists() && store.fsck(false).unwrap().is_clean());
        assert_eq!(store.disk_tree(of).unwrap(), tree);
        assert!(verifies(&store, of, &tree));
    }
}
