//! Snapshot files from elsewhere, whose claims are not trusted.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use micabox::{Sandboxes, Store};
use serde_json::{Value, json};

use crate::support::{Finished, Home, snapshot};

const DISK: &str = "64M";

/// Makes a new ext4 filesystem.
fn disk(home: &Home, name: &str, uuid: &str) -> PathBuf {
    let path = home.path().join(name);
    let file = path.to_str().unwrap();
    let made = ["ext4", "mkfs", file, "--size", DISK, "--uuid", uuid];
    home.output(&made).ok();
    path
}

/// Makes a snapshot's description of a root disk, which any user who can stat the file could make.
fn root_disk(path: &Path, in_place: bool) -> Value {
    let metadata = fs::metadata(path).unwrap();
    json!({
        "path": path,
        "format": "ext4",
        "in_place": in_place,
        "size": metadata.len(),
        "uuid": vec![0x11; 16],
        "modified": [metadata.mtime(), metadata.mtime_nsec()],
    })
}

/// Runs `mica run` without a guest: it gets as far as looking for one.
fn run(home: &Home, flags: &[&str]) -> Finished {
    let mut mica = home.mica(&[&["run", "--rm"], flags, &["true"]].concat());
    mica.env("MICABOX_GUEST", "/proc/none");
    Finished::of(mica)
}

const GUEST: &str = "guest file vmlinux not found";

#[test]
fn an_imported_snapshot_opens_no_file_that_the_user_did_not_name() {
    let home = Home::empty();
    let (own, other) = ("11".repeat(16), "22".repeat(16));
    let secret = disk(&home, "secret", &own);
    let upper = fs::read(disk(&home, "upper", &other)).unwrap();
    let file = home.path().join("file");
    let mut head = snapshot::snapshot("evil", "", upper.len());
    head["root_disk"] = root_disk(&secret, false);
    snapshot::write(&file, &head, &upper);
    home.output(&["snapshot", "import", file.to_str().unwrap()])
        .ok();

    let refused = run(&home, &["--from", "evil"]);
    assert_eq!(refused.code(), 125);
    let text = refused.stderr();
    assert!(text.contains("root disk is not part of it"), "{text}");
    assert!(text.contains("--from SNAPSHOT --root-disk FILE"), "{text}");

    // A file that the user names is accepted, wherever it lies.
    let elsewhere = home.path().join("elsewhere");
    fs::copy(&secret, &elsewhere).unwrap();
    let named = |path: &Path| {
        run(
            &home,
            &["--from", "evil", "--root-disk", path.to_str().unwrap()],
        )
    };
    assert!(named(&elsewhere).stderr().contains(GUEST));
    let another = named(&disk(&home, "another", &other));
    assert!(another.stderr().contains("format, size or UUID differ"));
    let mut in_place = elsewhere.into_os_string();
    in_place.push(":rw");
    let in_place = named(Path::new(&in_place));
    assert!(in_place.stderr().contains("omit :rw"));

    // mica never exports a snapshot of a root disk that is written to.
    head["root_disk"] = root_disk(&secret, true);
    snapshot::write(&file, &head, &upper);
    let refused = home.output(&["snapshot", "import", file.to_str().unwrap(), "worse"]);
    assert_eq!(refused.code(), 1);
    assert!(
        refused.stderr().contains("written to"),
        "{}",
        refused.stderr()
    );
}

#[test]
fn a_snapshot_of_an_image_takes_no_root_disk() {
    let home = Home::new();
    let images = home.output(&["images", "--json"]).json();
    let digest = images[0]["manifest_digest"].as_str().unwrap();
    let disk = disk(&home, "disk", &"11".repeat(16));
    let upper = fs::read(&disk).unwrap();
    let file = home.path().join("file");
    snapshot::write(
        &file,
        &snapshot::snapshot("good", digest, upper.len()),
        &upper,
    );
    home.output(&["snapshot", "import", file.to_str().unwrap()])
        .ok();
    assert!(run(&home, &["--from", "good"]).stderr().contains(GUEST));
    let path = disk.to_str().unwrap();
    let refused = run(&home, &["--from", "good", "--root-disk", path]);
    assert!(
        refused.stderr().contains("has no root disk"),
        "{}",
        refused.stderr()
    );
}

#[test]
fn a_copy_of_a_disk_has_the_options_of_its_start_on_record() {
    let home = Home::new();
    let images = home.output(&["images", "--json"]).json();
    let digest = images[0]["manifest_digest"].as_str().unwrap();
    let upper = fs::read(disk(&home, "disk", &"11".repeat(16))).unwrap();
    let file = home.path().join("file");
    let head = snapshot::snapshot("good", digest, upper.len());
    snapshot::write(&file, &head, &upper);
    home.output(&["snapshot", "import", file.to_str().unwrap()])
        .ok();
    for (name, options, cold) in [("warm", &[][..], false), ("cold", &["--cold"], true)] {
        let create = ["create", "--from", "good", "--name", name];
        home.output(&[&create[..], options, &["true"]].concat())
            .ok();
        let sandboxes = Sandboxes::open(&Store::open(&home.store()).unwrap()).unwrap();
        let made = sandboxes.get(name).unwrap();
        assert_eq!(made.record().spec.cold, cold, "{name}");
    }
}
