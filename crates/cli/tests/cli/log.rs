//! `--log` and `MICABOX_LOG`: what mica and the owners of sandboxes tell of what they do.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{Finished, Home, image};

#[test]
fn nothing_is_logged_unless_requested() {
    let home = Home::empty();
    let quiet = home.output(&["snapshot", "rm", "none"]);
    assert_eq!(quiet.code(), 1);
    assert_eq!(quiet.stderr().lines().count(), 2, "{}", quiet.stderr());
    let mut empty = home.mica(&["snapshot", "rm", "none"]);
    empty.env("MICABOX_LOG", "");
    assert_eq!(Finished::of(empty).stderr(), quiet.stderr());
}

#[test]
fn a_wrong_filter_is_a_wrong_command_line() {
    let home = Home::empty();
    for (arguments, code) in [
        (&["ps", "--log", "micabox=loud"][..], 2),
        (&["--log", "micabox=loud", "run", "box"], 125),
        (&["run", "--log", "micabox=loud", "box"], 125),
    ] {
        let wrong = home.output(arguments);
        assert_eq!(wrong.code(), code, "{arguments:?}");
        let text = wrong.stderr();
        assert!(text.contains("the filter `micabox=loud`"), "{text}");
    }
    let mut wrong = home.mica(&["ps"]);
    wrong.env("MICABOX_LOG", "micabox=loud");
    assert_eq!(Finished::of(wrong).code(), 2);
}

#[test]
fn a_filter_is_for_parts_of_mica() {
    let home = Home::empty();
    let archive = home.path().join("box.tar");
    image::write_archive(&archive, &image::layers(), &image::config());
    let load = |filter: &str| {
        let load = home.output(&["load", "--log", filter, archive.to_str().unwrap()]);
        assert_eq!(load.code(), 0, "{}", load.stderr());
        load.stderr()
    };
    let log = load("micabox_image=debug");
    let converted = log.matches("converted the layer diff_id=sha256:").count();
    assert_eq!(converted, image::layers().len(), "{log}");
    assert!(!load("micabox=debug").contains("layer"));
}

#[test]
#[ignore = "needs a built guest"]
fn an_attached_sandbox_logs_to_stderr() {
    let home = Home::new();
    let run = home.output(&[
        "run",
        "--log",
        "micabox=debug",
        "--rm",
        "box",
        "echo",
        "out",
    ]);
    assert_eq!((run.code(), run.stdout().as_str()), (0, "out\n"));
    let log = run.stderr();
    // mica itself, and the owner.
    for step in [
        "planned the machine",
        "started the owner",
        "the machine runs",
        "the sandbox is ready",
        "the sandbox runs",
        "the sandbox ends code=0",
    ] {
        assert!(log.contains(step), "{step}: {log}");
    }
    assert!(
        log.contains("create{base=docker.io/library/box:latest}"),
        "{log}"
    );
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_detached_sandbox_logs_to_a_file() {
    let home = Home::new();
    let mut run = home.mica(&["run", "-d", "--name", "it", "box", "sleep", "1000"]);
    run.env("MICABOX_LOG", "info");
    assert!(Finished::of(run).stderr().contains("the sandbox runs"));
    let path = home.directory_of("it").join("owner.log");
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains("the sandbox is ready"), "{log}");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    home.output(&["stop", "-t", "0", "it"]).ok();
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains("the sandbox ends"), "{log}");
    home.output(&["rm", "it"]).ok();
}
