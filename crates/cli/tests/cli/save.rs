//! Images that leave the store: `mica save`, `mica tag`, and `mica push` without a registry. Real
//! registries are in the tests of the image crate.

use std::fs;
use std::process::Stdio;

use crate::support::{Home, image, wait_until};

fn digest(home: &Home, name: &str) -> String {
    let image = home.output(&["inspect", name]).json();
    image[0]["image"]["config_digest"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn an_image_is_saved_and_loaded_elsewhere() {
    let home = Home::new();
    let path = home.path().join("saved.tar");
    let file = path.to_str().unwrap();
    for arguments in [
        &["save", "-o", file, "box"][..],
        &["save", "-o", file, "--format", "docker-archive", "box"],
        &["save", "--compression", "zstd", "--output", file, "box"],
    ] {
        assert_eq!(home.output(arguments).ok(), "");
        let whole = fs::read(&path).unwrap();
        let other = Home::empty();
        assert!(
            other
                .output(&["load", file])
                .ok()
                .starts_with("box:latest ")
        );
        assert_eq!(digest(&other, "box"), digest(&home, "box"));

        // A pipe gets the same bytes.
        let piped: Vec<_> = arguments
            .iter()
            .filter(|word| !["-o", "--output", file].contains(word))
            .copied()
            .collect();
        let mut command = home.mica(&piped);
        let output = command.stdout(Stdio::piped()).output().unwrap();
        assert!(
            output.status.success() && output.stdout == whole,
            "{piped:?}"
        );
    }
    let litter = fs::read_dir(home.path()).unwrap().count();
    assert_eq!(litter, 2, "the store and the archive");
}

#[test]
fn a_save_that_fails_leaves_the_old_file() {
    let home = Home::new();
    let path = home.path().join("saved.tar");
    fs::write(&path, "precious").unwrap();
    let file = path.to_str().unwrap();
    let failed = home.output(&["save", "-o", file, "box", "nothing"]);
    assert_eq!(failed.code(), 1);
    assert!(failed.stderr().contains("`nothing`"), "{}", failed.stderr());
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
    let nowhere = home.output(&["save", "-o", "/proc/none/saved.tar", "box"]);
    assert!(
        nowhere.stderr().contains("/proc/none"),
        "{}",
        nowhere.stderr()
    );
    let wrong = home.output(&["save", "--format", "zip", "box"]);
    assert_eq!(wrong.code(), 2);
    assert!(
        wrong.stderr().contains("docker-archive"),
        "{}",
        wrong.stderr()
    );
    assert_eq!(home.output(&["save", "-o", "/dev/null", "box"]).ok(), "");
}

#[test]
fn a_terminal_gets_no_archive() {
    let home = Home::new();
    let (pty, pts) = pty_process::blocking::open().unwrap();
    let command = pty_process::blocking::Command::new(env!("CARGO_BIN_EXE_mica"))
        .args(["save", "box"])
        .env("MICABOX_HOME", home.store())
        .env("MICABOX_CONFIG", "/dev/null");
    let mut child = command.spawn(pts).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    drop(pty);
}

#[test]
fn a_name_given_again_moves_to_the_new_image() {
    let home = Home::new();
    home.output(&["tag", "box", "mine:1"]).ok();
    assert_eq!(digest(&home, "mine:1"), digest(&home, "box"));
    home.output(&["rmi", "box"]).ok();
    assert_eq!(digest(&home, "mine:1").len(), 71);
    assert_eq!(home.output(&["tag", "nothing", "mine:2"]).code(), 1);
    let by_digest = format!("mine@{}", digest(&home, "mine:1"));
    let refused = home.output(&["tag", "mine:1", &by_digest]);
    assert!(refused.stderr().contains("digest"), "{}", refused.stderr());
}

#[test]
fn a_registry_that_is_not_there_is_named() {
    let home = Home::new();
    let failed = home.output(&["push", "box", "127.0.0.1:1/box"]);
    assert_eq!(failed.code(), 1);
    let text = failed.stderr();
    assert!(
        text.contains("cannot push") && text.contains("127.0.0.1:1"),
        "{text}"
    );
    let missing = home.output(&["push", "nothing", "127.0.0.1:1/box"]);
    assert!(
        missing.stderr().contains("`nothing`"),
        "{}",
        missing.stderr()
    );
}

#[test]
fn a_save_that_is_given_up_leaves_no_file() {
    // Unlike SIGINT, not ignored by tests that were started in the background.
    const TERM: i32 = 15;
    let home = Home::empty();
    // Incompressible data, so that saving takes a while.
    let noise: Vec<u8> = (0_u64..48 << 17)
        .flat_map(|number| {
            (number + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
                .to_le_bytes()
        })
        .collect();
    home.load(&[image::one_file("noise", &noise)], &image::config());
    let directory = home.path().join("out");
    fs::create_dir(&directory).unwrap();
    let names = || fs::read_dir(&directory).unwrap().count();
    let file = directory.join("box.tar");
    let saving = home.start(&["save", "-o", file.to_str().unwrap(), "box"]);
    // The file has no name, but the process that writes it has it open.
    let open = format!("/proc/{}/fd", saving.pid());
    wait_until("it writes", || {
        let mut open = fs::read_dir(&open).unwrap().flatten();
        open.any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.starts_with(&directory)))
    });
    saving.signal(TERM);
    assert_eq!((saving.wait(), names()), (-TERM, 0));
    home.output(&["save", "-o", file.to_str().unwrap(), "box"])
        .ok();
    home.output(&["save", "-o", file.to_str().unwrap(), "box"])
        .ok();
    assert_eq!(names(), 1);
}
