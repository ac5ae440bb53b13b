//! Images in the store: publication, lookup by name, descriptors for QEMU.

use std::fs;
use std::path::Path;
use std::process::Command;

use micabox_erofs::format::FileType;
use micabox_erofs::{BLOCK_SIZE, Concat, Reader};
use micabox_image::store::{Error, Image};
use micabox_image::{Digest, Reference, Store, identity};
use micabox_testing::mounts::Mount;
use micabox_testing::run;

use crate::layer::archive::Archive;
use crate::layer::image::{documents, publish};
use crate::layer::tree;
use crate::layer::{TestStore, check_structure_over, convert, store};

fn two_layers() -> Vec<Vec<u8>> {
    vec![
        Archive::new()
            .directory("./")
            .file("a", "1")
            .file("d/b", "2".repeat(5000))
            .file("d/target", "linked")
            .finish(),
        Archive::new()
            .whiteout(".wh.a")
            .file("d/c", "3".repeat(9000))
            .hard_link("d/link", "d/target")
            .finish(),
    ]
}

/// Returns the files of an image in the order of its flat address space.
fn files(image: &Image) -> Vec<&Path> {
    let layers = image.layers.iter().map(|layer| layer.path.as_path());
    std::iter::once(image.fsmeta.as_path())
        .chain(layers)
        .collect()
}

#[test]
fn an_image_is_found_by_every_spelling_of_its_name() {
    let store = store();
    let published = publish(&store, &two_layers(), "debian");
    let hex = published.manifest_digest.hex();
    for name in [
        "debian",
        "debian:latest",
        "docker.io/library/debian:latest",
        &format!("sha256:{hex}"),
        &hex,
        &hex[..12],
        &hex[..3],
        &format!("sha256:{}", &hex[..3]),
    ] {
        let image = store.image(name).unwrap();
        assert_eq!(image.manifest_digest, published.manifest_digest, "{name}");
        assert_eq!(image.layers, published.layers);
    }
    // A part of a name is not a name.
    for name in [
        "debia",
        "ebian",
        "debian:lates",
        "library",
        &hex[..2],
        &format!("sha256:{}", &hex[..2]),
        &format!("sha512:{}", &hex[..12]),
        "Debian",
    ] {
        assert!(store.image(name).is_err(), "{name}");
    }
    // Of two images with such digests none is meant, unless that is the name of one.
    let digits = &hex[..4];
    let other = format!("{digits}{}", "0".repeat(60));
    std::fs::create_dir(store.root().join("images/sha256").join(&other)).unwrap();
    for name in [digits, &format!("sha256:{digits}")] {
        let text = store.image(name).unwrap_err().to_string();
        assert!(
            text.contains(&hex[..12]) && text.contains(&other[..12]),
            "{text}"
        );
    }
    let named = publish(&store, &two_layers(), digits);
    assert_eq!(
        store.image(digits).unwrap().manifest_digest,
        named.manifest_digest
    );
}

#[test]
fn a_name_means_the_image_that_it_was_given_last() {
    let store = store();
    let old = publish(&store, &two_layers(), "name");
    let new = publish(&store, &two_layers()[..1], "name");
    assert_eq!(
        store.image("name").unwrap().manifest_digest,
        new.manifest_digest
    );
    let other: Reference = "registry.example:5000/a/b/c:1.0".parse().unwrap();
    store.tag(&other, &old.manifest_digest).unwrap();
    let found = store.image("registry.example:5000/a/b/c:1.0").unwrap();
    assert_eq!(
        (found.manifest_digest, found.reference),
        (old.manifest_digest, Some(other))
    );
    assert!(
        store
            .tag(&"x".parse().unwrap(), &Digest::of(b"nothing"))
            .is_err()
    );
}

#[test]
fn merged_metadata_shows_all_layers_as_one() {
    let store = store();
    let image = publish(&store, &two_layers(), "image");
    check_structure_over(&image.fsmeta, &image.layers);
    let fixup = image.fixup.as_ref().expect("the link needs one in a stack");
    check_structure_over(&fixup.path, &image.layers);
    let sources = files(&image)
        .into_iter()
        .map(|path| fs::read(path).unwrap());
    let reader = Reader::open(Concat::new(sources, 2 << 20).unwrap()).unwrap();
    let mut paths = Vec::new();
    reader
        .walk(|path, inode| {
            paths.push(String::from_utf8(path.to_vec()).unwrap());
            if inode.kind == FileType::Regular {
                let mut contents = vec![0; inode.size as usize];
                reader.read(inode, 0, &mut contents)?;
                let expected: &[u8] = match path {
                    b"/d/b" => &[b'2'; 5000],
                    b"/d/c" => &[b'3'; 9000],
                    _ => b"linked",
                };
                assert_eq!(contents, expected);
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(paths, ["/", "/d", "/d/b", "/d/c", "/d/link", "/d/target"]);
    assert_eq!(image.first_layer, 0);
}

#[test]
fn every_file_is_padded_and_known_by_its_uuid() {
    let store = store();
    let image = publish(&store, &two_layers(), "image");
    let diff_ids: Vec<_> = image.layers.iter().map(|layer| layer.diff_id).collect();
    let fixup = image.fixup.unwrap();
    let mut files = vec![
        (
            image.fsmeta,
            image.fsmeta_blocks,
            identity::fsmeta_uuid(&diff_ids),
        ),
        (fixup.path, fixup.blocks, identity::fixup_uuid(&diff_ids)),
    ];
    for layer in image.layers {
        files.push((
            layer.path,
            layer.blocks,
            identity::layer_uuid(&layer.diff_id),
        ));
    }
    for (path, blocks, uuid) in files {
        let length = fs::metadata(&path).unwrap().len();
        assert_eq!(length, blocks * BLOCK_SIZE);
        assert!(length.is_multiple_of(2 << 20));
        assert_eq!(Reader::open(fs::read(&path).unwrap()).unwrap().uuid(), uuid);
    }
}

#[test]
fn an_image_without_layers_is_an_empty_root() {
    let store = store();
    let image = publish(&store, &[], "scratch");
    assert!(image.layers.is_empty());
    let reader = Reader::open(fs::read(&image.fsmeta).unwrap()).unwrap();
    assert_eq!(reader.inode_count(), 1);
}

#[test]
fn an_image_may_have_a_layer_more_than_once() {
    let store = store();
    let empty = Archive::new().finish();
    let layers = [two_layers().remove(0), empty.clone(), empty.clone(), empty];
    let image = publish(&store, &layers, "image");
    assert_eq!(image.layers.len(), 4);
    assert_eq!(image.layers[1], image.layers[3]);
    assert_eq!(store.usage().unwrap().layers, 2);
}

#[test]
fn an_opaque_root_hides_all_layers_below() {
    let store = store();
    let top = Archive::new()
        .whiteout(".wh..wh..opq")
        .file("only", "")
        .finish();
    let layers = [two_layers().remove(0), top];
    assert_eq!(publish(&store, &layers, "image").first_layer, 1);
}

#[test]
fn documents_that_do_not_belong_together_are_refused() {
    let store = store();
    let layers = two_layers();
    for layer in &layers {
        convert(&store, layer).unwrap();
    }
    let (manifest, config) = documents(&layers);
    let (_, other) = documents(&layers[..1]);
    let publish = |manifest: &[u8], config: &[u8]| store.publish_image(manifest, config, &[]);
    assert!(matches!(
        publish(&manifest, &other),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        publish(b"{}", &config),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        publish(&manifest, b"[]"),
        Err(Error::Invalid { .. })
    ));
    let missing = Archive::new().file("never converted", "").finish();
    let (with_missing, its_config) = documents(std::slice::from_ref(&missing));
    match publish(&with_missing, &its_config) {
        Err(Error::NoLayer { diff_id }) => assert_eq!(diff_id, Digest::of(&missing)),
        other => panic!("{other:?}"),
    }
    assert!(store.images().unwrap().is_empty());
    let image = publish(&manifest, &config).unwrap();
    assert_eq!(store.manifest(&image.manifest_digest).unwrap(), manifest);
    assert_eq!(store.config(&image.manifest_digest).unwrap(), config);
}

#[test]
fn an_image_of_another_format_is_made_again_and_never_used() {
    let store = store();
    let image = publish(&store, &two_layers(), "image");
    let record = image.fsmeta.with_file_name("image.json");
    let text = fs::read_to_string(&record).unwrap();
    let format = format!("\"format\": {}", identity::FORMAT);
    assert!(text.contains(&format));
    fs::write(&record, text.replace(&format, "\"format\": 0")).unwrap();
    match store.image("image") {
        Err(Error::Unusable { problem, .. }) => assert!(problem.contains("format 0")),
        other => panic!("{other:?}"),
    }
    publish(&store, &two_layers(), "image");
    store.image("image").unwrap();
    assert_eq!(fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_layer_of_another_format_counts_as_missing_and_is_replaced() {
    let store = store();
    let image = publish(&store, &two_layers(), "image");
    let layer = &image.layers[0];
    let record = layer.path.with_extension("json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"format\": ", "\"format\": 9")).unwrap();
    assert_eq!(store.layer(&layer.diff_id).unwrap(), None);
    assert!(matches!(store.image("image"), Err(Error::Unusable { .. })));
    convert(&store, &two_layers()[0]).unwrap();
    // The layer that is made again has the same bytes, so the image is complete again, too.
    store.image("image").unwrap();
}

#[test]
fn a_store_can_be_moved() {
    let store = store();
    let image = publish(&store, &two_layers(), "image");
    let descriptor = fs::read_to_string(&image.vmdk).unwrap();
    let old = store.root().to_str().unwrap().to_owned();
    assert!(!descriptor.contains(&old));
    let moved = store.directory.path().join("moved");
    fs::rename(store.root(), &moved).unwrap();
    let store = Store::open(&moved).unwrap();
    let image = store.image("image").unwrap();
    assert!(
        files(&image)
            .iter()
            .all(|path| path.starts_with(&moved) && path.exists())
    );
    assert!(store.fsck(false).unwrap().is_clean());
    for entry in fs::read_dir(image.fsmeta.parent().unwrap()).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        assert!(
            !bytes
                .windows(old.len())
                .any(|window| window == old.as_bytes())
        );
    }
}

#[test]
fn qemu_reads_the_disk_as_the_files_one_after_the_other() {
    let store = store();
    let image = publish(&store, &two_layers(), "image");
    let raw = flat_disk(&store, &image);
    let expected: Vec<u8> = files(&image)
        .into_iter()
        .flat_map(|p| fs::read(p).unwrap())
        .collect();
    assert!(fs::read(raw).unwrap() == expected);
}

/// Converts the VMDK, as QEMU reads it, to one file.
fn flat_disk(store: &TestStore, image: &Image) -> std::path::PathBuf {
    let raw = store.directory.path().join("disk.raw");
    run(Command::new("qemu-img")
        .args(["convert", "-f", "vmdk", "-O", "raw"])
        .args([&image.vmdk, &raw]));
    raw
}

#[test]
fn qemu_reads_extents_beyond_2_gib() {
    use micabox_image::store::vmdk::{Extent, descriptor};
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let large = directory.path().join("large");
    let file = fs::File::create(&large).unwrap();
    let length = (5u64 << 30) + 4096;
    file.set_len(length).unwrap();
    let places = [0, (2 << 30) - 4096, 2 << 30, 4 << 30, length - 4096];
    for at in places {
        file.write_all_at(&at.to_le_bytes(), at).unwrap();
    }
    let path = Path::new("large");
    let text = descriptor(&[Extent { path, length: 4096 }, Extent { path, length }]).unwrap();
    let disk = directory.path().join("disk.vmdk");
    fs::write(&disk, text).unwrap();
    let raw = directory.path().join("disk.raw");
    run(Command::new("qemu-img")
        .args(["convert", "-f", "vmdk", "-O", "raw"])
        .args([&disk, &raw]));
    let raw = fs::File::open(raw).unwrap();
    assert_eq!(raw.metadata().unwrap().len(), length + 4096);
    for at in places {
        let mut found = [0; 8];
        raw.read_exact_at(&mut found, at + 4096).unwrap();
        assert_eq!(u64::from_le_bytes(found), at);
    }
}

#[test]
#[ignore = "needs root"]
fn the_kernel_mounts_the_flat_disk_and_shows_what_overlayfs_shows() {
    let store = store();
    let image = publish(&store, &two_layers(), "image");
    let at = |name: &str| store.directory.path().join(name);
    let flat = Mount::erofs(&flat_disk(&store, &image), &[]);
    let read = |path: &Path| {
        let mut tree = tree::read(path);
        // overlayfs doesn't count the subdirectories of merged directories.
        let directories = tree.values_mut().filter(|node| node.kind == 'd');
        directories.for_each(|node| node.links = 0);
        tree
    };
    let flat_tree = read(flat.path());

    // The fixup's files are in the layers: it is mounted from such a disk as well.
    let fixup = &image.fixup.as_ref().unwrap().path;
    let mut disk = fs::read(fixup).unwrap();
    image
        .layers
        .iter()
        .for_each(|layer| disk.extend(fs::read(&layer.path).unwrap()));
    fs::write(at("fixup.raw"), disk).unwrap();
    let mut stack = vec![Mount::erofs(&at("fixup.raw"), &[])];
    let layers = image.layers.iter().rev();
    stack.extend(layers.map(|layer| Mount::erofs(&layer.path, &[])));
    let overlay = Mount::stack_with(&stack, "metacopy=on,redirect_dir=on");
    assert_eq!(read(overlay.path()), flat_tree);
    assert_eq!(flat_tree.len(), 6);
    drop(overlay);
}
