//! Views of an image that lack some of its paths.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_erofs::Reader;
use micabox_image::store::{FsckOptions, Image, PruneOptions, Repair};
use micabox_image::{Hidden, Trim, identity};
use micabox_testing::mounts::Mount;
use micabox_testing::run;

use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::tree;
use crate::layer::{TestStore, check_structure_over, store};

/// Two layers, with hard links out of and into what is hidden, also from one layer to the other.
fn layers() -> Vec<Vec<u8>> {
    let bottom = Archive::new()
        .directory("./")
        .file("usr/share/doc/a/copyright", "licence")
        .file("usr/share/doc/a/guide", "g".repeat(5000))
        .symlink("usr/share/doc/b", "a")
        .file("usr/share/man/man1/sh.1", "man")
        .file("usr/share/man/de/man1/sh.1", "Handbuch")
        .file("usr/share/locale/de/LC_MESSAGES/sh.mo", "nein")
        .file("usr/share/locale/en_GB/LC_MESSAGES/sh.mo", "no")
        .file("usr/share/locale/locale.alias", "german de_DE")
        .file("usr/lib/locale/C.utf8/LC_CTYPE", "compiled")
        .file("var/cache/apt/archives/old.deb", "d".repeat(9000))
        .directory("var/cache/apt/archives/partial/")
        .file("var/cache/debconf/config.dat", "answers")
        .hard_link("srv/guide", "usr/share/doc/a/guide")
        .file("opt/a/tests/t", "t")
        .file("opt/b/tests/keep/t", "kept")
        .file("opt/b/tests/drop/t", "t")
        .file("opt/b/run", "run");
    let top = Archive::new()
        .file("var/cache/apt/pkgcache.bin", "p")
        .hard_link("srv/from-top", "usr/share/man/man1/sh.1")
        .hard_link("opt/a/tests/run", "opt/b/run")
        .whiteout("opt/a/.wh.none");
    vec![bottom.finish(), top.finish()]
}

const TRIM: &str = "docs,man,locales,caches,/opt/*/tests,!/opt/b/tests/keep,/no/such/path";

/// Does the same with the tools of a shell.
const REMOVE: &str = "rm -rf usr/share/doc/*; \
    find usr/share/man ! -type d -delete; \
    find usr/share/locale -mindepth 1 -maxdepth 1 ! -name 'en*' ! -name locale.alias \
        -exec rm -r {} +; \
    find var/cache/apt ! -type d -delete; \
    rm -r opt/a/tests opt/b/tests/drop";

fn trim(text: &str) -> Trim {
    text.parse().unwrap()
}

/// Writes what a machine has as one disk, `[fsmeta | layer | layer]`, and returns its path.
fn flat(store: &TestStore, image: &Image, name: &str) -> PathBuf {
    let mut bytes = fs::read(&image.fsmeta).unwrap();
    for layer in &image.layers {
        bytes.extend(fs::read(&layer.path).unwrap());
    }
    let path = store.directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_view_is_made_once_for_each_list() {
    let store = store();
    let image = publish(&store, &layers(), "image");
    let view = store.trimmed(&image, &trim(TRIM)).unwrap();
    check_structure_over(&view.fsmeta, &view.layers);
    assert_eq!(view.layers, image.layers);
    assert_eq!((&view.reference, &view.fixup), (&image.reference, &None));
    let diff_ids: Vec<_> = image.layers.iter().map(|layer| layer.diff_id).collect();
    let bytes = fs::read(&view.fsmeta).unwrap();
    let uuid = identity::trimmed_uuid(&diff_ids, &view.trim);
    assert_eq!(Reader::open(&bytes[..]).unwrap().uuid(), uuid);

    // A second request for the same patterns, in other words, gets the same file.
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let (made, reversed) = (inode(&view.fsmeta), TRIM.split(',').rev());
    let again = Trim::new(reversed).unwrap();
    let again = store.trimmed(&image, &again).unwrap();
    assert_eq!((&again.fsmeta, inode(&again.fsmeta)), (&view.fsmeta, made));
    let other = store.trimmed(&view, &trim("docs")).unwrap();
    assert_ne!(other.fsmeta, view.fsmeta);
    let whole = store.trimmed(&other, &Trim::default()).unwrap();
    assert_eq!((&whole.fsmeta, &whole.fixup), (&image.fsmeta, &image.fixup));

    // Names: three of docs, two of man, one locale, two caches, three tests.
    let hidden = Hidden {
        files: 11,
        bytes: 7 + 8 + 4 + 9000 + 1 + 1 + 1,
    };
    let views = store.views(&image.manifest_digest).unwrap();
    let found = views.iter().find(|found| found.trim == view.trim);
    assert_eq!((views.len(), found.unwrap().hidden), (2, hidden));

    // One that has to be made again is the same, so that a sandbox may continue with it.
    fs::remove_dir_all(view.fsmeta.parent().unwrap()).unwrap();
    store.trimmed(&image, &view.trim).unwrap();
    assert_eq!(fs::read(&view.fsmeta).unwrap(), bytes);
    assert_eq!(fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);
}

#[test]
#[ignore = "needs root"]
fn the_kernel_shows_the_image_without_what_is_hidden() {
    let store = store();
    let at = |name: &str| store.directory.path().join(name);
    let image = publish(&store, &layers(), "image");
    let view = store.trimmed(&image, &trim(TRIM)).unwrap();
    let whole = Mount::erofs(&flat(&store, &image, "whole"), &[]);
    let copy = at("copy");
    run(Command::new("cp").arg("-a").arg(whole.path()).arg(&copy));
    run(Command::new("sh").args(["-ec", REMOVE]).current_dir(&copy));
    // Names and link counts are those of the copy; removals have changed its directories' times.
    let mut links: BTreeMap<_, _> = tree::read(&copy)
        .into_iter()
        .map(|(path, node)| (path, node.links))
        .collect();
    let mut expected = tree::read(whole.path());
    expected.retain(|path, node| match links.remove(path) {
        Some(count) => {
            node.links = count;
            true
        }
        None => false,
    });
    let trimmed = Mount::erofs(&flat(&store, &view, "trimmed"), &[]);
    let seen = tree::read(trimmed.path());
    assert_eq!(seen, expected);
    let links = |path: &[u8]| seen[path].links;
    assert_eq!((links(b"srv/guide"), links(b"srv/from-top")), (1, 1));
}

#[test]
fn a_view_goes_with_its_image_or_when_no_sandbox_uses_it() {
    let store = store();
    let image = publish(&store, &layers(), "image");
    let view = store.trimmed(&image, &trim("docs")).unwrap();
    let before = store.usage().unwrap();
    assert!(before.reclaimable_size > 0);
    store.lease("box", &[image.manifest_digest]).unwrap();
    assert_eq!(store.prune(&PruneOptions::default()).unwrap().views, 0);
    assert!(view.fsmeta.exists());

    fs::remove_dir_all(store.root().join("sandboxes/box")).unwrap();
    let dry = PruneOptions {
        dry_run: true,
        ..PruneOptions::default()
    };
    let planned = store.prune(&dry).unwrap();
    assert!(view.fsmeta.exists());
    assert_eq!((planned.views, planned.size), (1, before.reclaimable_size));
    assert_eq!(store.prune(&PruneOptions::default()).unwrap(), planned);
    assert!(!view.fsmeta.exists());

    store.trimmed(&image, &view.trim).unwrap();
    let removed = store.remove("image").unwrap().pruned.unwrap();
    assert!(removed.size > planned.size && !view.fsmeta.exists());
    store.trimmed(&image, &view.trim).unwrap_err();
}

#[test]
fn fsck_notices_damaged_views_and_the_image_stays() {
    for name in ["view.json", "fsmeta.erofs", "disk.vmdk"] {
        let store = store();
        let image = publish(&store, &layers(), "image");
        let view = store.trimmed(&image, &trim("man")).unwrap();
        assert!(store.fsck(false).unwrap().is_clean());
        let file = view.fsmeta.with_file_name(name);
        let mut bytes = fs::read(&file).unwrap();
        bytes[1] ^= 1;
        fs::write(&file, bytes).unwrap();
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let report = store.fsck_with(&options).unwrap();
        let [finding] = &report.findings[..] else {
            panic!("{name}: {report:#?}");
        };
        assert_eq!(finding.repair, Repair::RemoveView, "{name}");
        assert!(!view.fsmeta.exists() && store.fsck(false).unwrap().is_clean());
        store.trimmed(&image, &view.trim).unwrap();
    }
}
