//! A host whose disk is full. Needs root.

use std::fs;
use std::process::Command;

use micabox_testing::{DockerRegistry, run};

use crate::support::full::SmallDisk;
use crate::support::{Home, full, image};

#[test]
#[ignore = "needs a built guest, and root"]
fn a_guests_writes_wait_for_room_on_the_host() {
    full::writes_wait_for_room("qemu");
}

#[test]
#[ignore = "needs a built guest, and root"]
fn a_sandboxs_end_is_recorded_on_a_full_disk() {
    full::an_end_is_recorded("qemu");
}

/// Publishes both forms of an image with more and more room on the store's disk, until there is enough.
fn publishing_names_a_full_disk(command: &[&str]) {
    let home = Home::empty();
    let disk = SmallDisk::new(&home, "96m");
    home.load(&image::layers(), &image::config());
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let name = format!("{}/box:1", registry.host());
    let words = [command, &["box", &name]].concat();
    let mut room = 0;
    loop {
        disk.fill(room);
        let published = home.output(&words);
        if published.code() == 0 {
            break;
        }
        assert_eq!(published.code(), 1);
        full::assert_named(&home, &published.stderr());
        assert_eq!(files_in_tmp(&home), 0);
        // Blobs that arrived stay in the registry; what names them comes last.
        assert_eq!(status_of(&registry, "1"), "404");
        room += 64 << 10;
    }
    assert!(
        room >= 5 * (64 << 10),
        "there was room from {room} bytes on"
    );
    assert_eq!(status_of(&registry, "1"), "200");
    disk.make_room();
    home.output(&["store", "fsck"]).ok();
    Home::empty()
        .output(&["convert", "-q", "--verify", &name])
        .ok();
}

/// Asks a registry for an index of `box`.
fn status_of(registry: &DockerRegistry, tag: &str) -> String {
    let url = format!("http://{}/v2/box/manifests/{tag}", registry.host());
    let accept = "Accept: application/vnd.oci.image.index.v1+json";
    let ask = ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", accept];
    run(Command::new("curl").args(ask).arg(&url))
}

fn files_in_tmp(home: &Home) -> usize {
    fs::read_dir(home.store().join("tmp")).unwrap().count()
}

#[test]
#[ignore = "needs root: it mounts a small filesystem"]
fn a_conversion_that_is_published_names_a_full_disk_and_leaves_nothing() {
    publishing_names_a_full_disk(&["convert", "-q"]);
}

#[test]
#[ignore = "needs root: it mounts a small filesystem"]
fn a_push_of_both_forms_names_a_full_disk_and_leaves_nothing() {
    publishing_names_a_full_disk(&["push", "-q", "--erofs"]);
}
