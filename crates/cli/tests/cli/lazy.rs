//! Containers of an image of which only a part is here.

use std::fs;
use std::process::Command;
use std::thread;

use micabox_testing::{Answers, Proxy};

use crate::support::full::SmallDisk;
use crate::support::lazy::Remote;
use crate::support::packed::READ;
use crate::support::{Finished, Home, wait_until};

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
fn settings_make_starts_lazy_keep_images_as_they_are_and_pack_those_that_are_not_used() {
    let remote = Remote::new();
    let name = &*remote.name;
    let settings = remote.home.path().join("config.toml");
    let with = |text: &str, words: &[&str]| {
        fs::write(&settings, text).unwrap();
        let mut mica = remote.home.mica(words);
        mica.env("MICABOX_CONFIG", &settings);
        Finished::of(mica).ok()
    };
    let run = ["run", "--rm", "-q", "--backend", "host", name];
    let read = [&run[..], &["sh", "-c", READ]].concat();
    // Unless it is to, it does not become whole.
    let stays = "lazy = true\nmake-whole = false\n";
    assert_eq!(with(stays, &read), expected(&remote));
    remote.home.assert_nothing_left();
    assert_ne!(remote.lazy(), 0);
    assert_eq!(with("lazy = true\n", &read), expected(&remote));
    remote.home.assert_nothing_left();
    assert_eq!(remote.lazy(), 0);
    // Only a lazy start notes its order.
    remote.home.output(&["push", "--start-order", name]).ok();

    let packed = || {
        let usage = remote.home.output(&["store", "df", "--json"]).json();
        usage["packed_layers"].as_u64().unwrap()
    };
    with("", &["pull", "-q", name]);
    assert_eq!(packed(), 0);
    with("pack-unused-days = 0\n", &["pull", "-q", name]);
    wait_until("the image is packed", || packed() > 0);
    // A start without FUSE or parts would unpack it at once.
    assert_eq!(with("make-whole = false\n", &read), expected(&remote));
    remote.home.assert_nothing_left();
    assert_ne!(packed(), 0);
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
    let said = output.stderr();
    let why =
        |line: &&str| line.contains("could not be read") && line.contains("cannot connect to");
    assert_eq!(said.lines().filter(why).count(), 1, "{said}");
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
    fs::create_dir(&place).unwrap();
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
    fs::create_dir(&place).unwrap();
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

#[test]
#[ignore = "needs root and a built guest"]
fn a_registry_that_stalls_is_waited_for_as_long_as_the_settings_say_and_then_named() {
    let remote = Remote::new();
    let registry = remote.registry.as_ref().unwrap().host();
    let proxy = Proxy::start(registry);
    let name = remote.name.replace(registry, proxy.address());
    remote.pull_as(&name);
    let settings = remote.home.path().join("settings.toml");
    let text = "[transfer]\nidle-timeout = 1\nconnect-timeout = 1\nattempts = 1\n";
    fs::write(&settings, text).unwrap();
    proxy.set(Answers::Hold);
    let words = ["run", "--backend", "host", "--rm", "-q", "--lazy", &name];
    let mut mica = remote
        .home
        .mica(&[&words[..], &["sh", "-c", "cat /srv/random"]].concat());
    mica.env("MICABOX_CONFIG", &settings);
    // It ends although the registry never answers.
    let output = mica.output().unwrap();
    assert!(!output.status.success());
    assert!(proxy.held() > 0);
    // Not a byte that was not checked, and no zeros.
    assert_eq!(output.stdout, b"");
    remote.assert_noted("nothing arrived for");
    remote.assert_noted(proxy.address());
    // With a registry that answers, nothing of it is left.
    proxy.set(Answers::Pass);
    let words = [&words[..], &["sh", "-c", READ]].concat();
    assert_eq!(remote.home.output(&words).ok(), expected(&remote));
    remote.home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn on_a_disk_that_fills_every_byte_is_read_and_the_image_becomes_whole_once_there_is_room() {
    let remote = Remote::new();
    let expected = expected(&remote);
    let disk = SmallDisk::new(&remote.home, "32m");
    let start = ["run", "--backend", "host", "--rm", "-q", "--lazy"];
    let what = ["--net", "none", &*remote.name, "sh", "-c", READ];
    let run = || remote.home.output(&[&start[..], &what].concat());
    let no_server = || {
        wait_until("no image is held", || {
            remote.home.output(&["ps"]).ok();
            remote.home.held_images().is_empty() && remote.home.processes("mica-layers").is_empty()
        });
    };
    remote.pull();
    // Less than what is missing.
    disk.fill(1 << 20);
    assert_eq!(run().ok(), expected);
    no_server();
    assert_ne!(remote.lazy(), 0);
    let pull = remote.home.output(&["pull", "-q", &remote.name]);
    assert_ne!(pull.code(), 0);
    let said = pull.stderr();
    assert!(said.contains("no space left for"), "{said}");

    disk.make_room();
    let checked = remote.home.output(&["store", "fsck"]).ok();
    assert!(checked.contains("all well"), "{checked}");
    assert_eq!(run().ok(), expected);
    no_server();
    remote.home.output(&["pull", "-q", &remote.name]).ok();
    assert_eq!(remote.lazy(), 0);
    assert_eq!(run().ok(), expected);
    no_server();
}

#[test]
fn an_image_that_is_here_in_part_is_saved_and_pushed_as_its_archives() {
    let remote = Remote::new();
    let host = remote.registry.as_ref().unwrap().host().to_owned();
    let whole = Home::empty();
    whole.output(&["pull", "-q", &remote.name]).ok();
    let save = |home: &Home| {
        let file = home.path().join("saved.tar");
        let words = ["save", "-o", file.to_str().unwrap(), &remote.name];
        (home.output(&words), file)
    };
    let (_, expected) = save(&whole);
    remote.pull();
    let (output, saved) = save(&remote.home);
    let said = output.stderr();
    assert!(
        said.contains("came as EROFS images: it is pulled as archives"),
        "{said}"
    );
    assert!(fs::read(saved).unwrap() == fs::read(expected).unwrap());
    // The name means them, and what was here in part is nothing's.
    let digest = |home: &Home| {
        let image = home.output(&["inspect", &remote.name]).json();
        image[0]["image"]["manifest_digest"].clone()
    };
    assert_eq!(digest(&remote.home), digest(&whole));
    remote.home.output(&["store", "prune"]).ok();
    assert_eq!(remote.lazy(), 0);
    assert_eq!(
        remote.home.output(&["images", "-q"]).ok().lines().count(),
        1
    );

    let other = Home::empty();
    other.output(&["pull", "-q", "--lazy", &remote.name]).ok();
    let copy = format!("{host}/copy:1");
    other.output(&["tag", &remote.name, "mine"]).ok();
    other.output(&["push", "-q", "mine", &copy]).ok();
    other.output(&["pull", "-q", &copy]).ok();
    let config = |name: &str| {
        let image = other.output(&["inspect", name]).json();
        image[0]["image"]["config_digest"].clone()
    };
    assert_eq!(config(&copy), config("mine"));

    // A name that means another image by now has no archives of this one.
    let late = Home::empty();
    late.output(&["pull", "-q", "--lazy", &remote.name]).ok();
    let before = digest(&late);
    other.output(&["push", "-q", "mine", &remote.name]).ok();
    let (refused, file) = save(&late);
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    assert!(
        said.contains("has no archives beside them under this name"),
        "{said}"
    );
    assert!(!file.exists());
    assert_eq!(digest(&late), before);
    let refused = late.output(&["push", "-q", &remote.name]);
    assert_eq!(refused.code(), 1);
}
