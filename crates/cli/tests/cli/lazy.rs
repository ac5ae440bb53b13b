//! Containers of an image of which only a part is here.

use std::process::Command;
use std::thread;

use crate::support::lazy::Remote;
use crate::support::packed::READ;
use crate::support::wait_until;

/// What the image has, as its origin reads it.
fn expected(remote: &Remote) -> String {
    let words = [
        "run",
        "--rm",
        "-q",
        "--backend",
        "host",
        "box",
        "sh",
        "-c",
        READ,
    ];
    remote.origin.output(&words).ok()
}

#[test]
#[ignore = "needs root and a built guest"]
fn containers_that_start_at_once_read_what_is_in_the_image_which_becomes_whole() {
    let remote = Remote::new();
    let expected = expected(&remote);
    thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|_| scope.spawn(|| remote.run(READ))).collect();
        for one in all {
            assert_eq!(one.join().unwrap().ok(), expected);
        }
    });
    // A server ends when the image is whole.
    remote.home.assert_nothing_left();
    assert_eq!(remote.lazy(), 0);
    assert!(
        remote
            .home
            .output(&["store", "fsck"])
            .ok()
            .contains("all well")
    );
    assert_eq!(remote.run(READ).ok(), expected);

    // What it read, and in which order, helps the next store that has none of it.
    let order = remote
        .home
        .output(&["push", "--start-order", &remote.name])
        .ok();
    assert!(order.trim_end().ends_with(".order"), "{order}");
    remote.home.output(&["rmi", &remote.name]).ok();
    remote.home.output(&["store", "prune"]).ok();
    assert_eq!(remote.run(READ).ok(), expected);
    remote.home.assert_nothing_left();
    assert!(
        remote
            .home
            .output(&["store", "fsck"])
            .ok()
            .contains("all well")
    );
}

#[test]
#[ignore = "needs root and a built guest"]
fn without_its_registry_what_is_missing_is_not_read_and_the_reason_is_noted() {
    let mut remote = Remote::new();
    remote.pull();
    remote.registry = None;
    let output = remote.run("echo here; cat /srv/random");
    assert_ne!(output.code(), 0);
    assert!(!output.stdout().contains('\u{fffd}'), "{}", output.stdout());
    remote.assert_noted("cannot connect to");
    // Without --lazy all of it is needed.
    let words = ["run", "--rm", "--backend", "host", &*remote.name, "true"];
    let output = remote.home.output(&words);
    assert_eq!(output.code(), 125);
    let said = output.stderr();
    assert!(said.contains("cannot fetch the rest of layer"), "{said}");
    remote.home.assert_nothing_left();
    assert!(
        remote
            .home
            .output(&["store", "fsck"])
            .ok()
            .contains("all well")
    );
}

#[test]
#[ignore = "needs root and a built guest"]
fn of_a_chunk_that_its_registry_has_damaged_no_byte_is_read() {
    let remote = Remote::new();
    remote.pull();
    remote.damage();
    let output = remote.run("md5sum /srv/text; md5sum /srv/random");
    assert_ne!(output.code(), 0);
    let stdout = output.stdout();
    assert!(
        stdout.contains("/srv/text") && !stdout.contains("/srv/random"),
        "{stdout}"
    );
    remote.assert_noted("another checksum than its index says");
    remote.home.assert_nothing_left();
    assert_ne!(remote.lazy(), 0);
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_start_without_it_fetches_the_rest_first_and_so_does_a_pull_and_the_kernels_mount() {
    let remote = Remote::new();
    let expected = expected(&remote);
    let name = &*remote.name;
    let place = remote.home.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let place = place.to_str().unwrap();
    let run = ["run", "--rm", "-q", "--backend", "host", name, "true"];
    let ways: [&[&str]; 3] = [
        &run,
        &["pull", "-q", name],
        &["mount", "--with", "kernel", name, place],
    ];
    for way in ways {
        remote.home.output(&["rmi", name]);
        remote.home.output(&["store", "prune"]).ok();
        remote.pull();
        remote.home.output(way).ok();
        assert_eq!(remote.lazy(), 0, "{way:?}");
    }
    remote.home.output(&["umount", place]).ok();
    assert_eq!(remote.run(READ).ok(), expected);
    remote.home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_tree_is_mounted_and_read_while_it_comes() {
    let remote = Remote::new();
    remote.pull();
    let place = remote.home.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let shown = place.to_str().unwrap();
    remote
        .home
        .output(&["mount", "--with", "fuse", &remote.name, shown])
        .ok();
    let sum = micabox_testing::run(Command::new("md5sum").arg(place.join("srv/random")));
    let sum = sum.split(' ').next().unwrap();
    assert!(expected(&remote).contains(sum), "{sum}");
    remote.home.output(&["umount", shown]).ok();
    wait_until("the image is whole", || remote.lazy() == 0);
    remote.home.assert_nothing_left();
}
