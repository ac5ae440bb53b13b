//! `mica volume`, and volumes in sandboxes.

use std::fs::File;
use std::process::Command;

use crate::support::{Home, wait_until};

/// Runs one of e2fsprogs' tools on a volume's disk, and returns what it prints.
#[track_caller]
fn e2fsprogs(home: &Home, name: &str, program: &str, arguments: &[&str]) -> String {
    let disk = home.store().join("volumes").join(name).join("disk.ext4");
    let output = Command::new(program)
        .args(arguments)
        .arg(&disk)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    text
}

#[test]
fn a_volume_is_made_grown_listed_and_removed() {
    let home = Home::empty();
    let create = [
        "volume",
        "create",
        "--size",
        "20M",
        "-l",
        "for=tests",
        "data",
    ];
    assert_eq!(home.output(&create).ok(), "data\n");
    e2fsprogs(&home, "data", "e2fsck", &["-fn"]);
    let listed = home.output(&["volume", "ls"]).ok();
    assert!(
        listed.contains("data") && listed.contains("21.0 MB"),
        "{listed}"
    );
    assert_eq!(home.output(&["volume", "ls", "-q"]).ok(), "data\n");
    let shown = home.output(&["volume", "inspect", "data"]).json();
    assert_eq!(shown[0]["size"], 20 << 20);
    assert_eq!(shown[0]["labels"]["for"], "tests");
    assert_eq!(shown[0]["sandboxes"].as_array().unwrap().len(), 0);
    assert!(shown[0]["allocated"].as_u64().unwrap() < 20 << 20);

    home.output(&["volume", "resize", "data", "200M"]).ok();
    e2fsprogs(&home, "data", "e2fsck", &["-fn"]);
    let header = e2fsprogs(&home, "data", "dumpe2fs", &["-h"]);
    let blocks = (200 << 20) / 4096;
    assert!(
        header.contains(&format!("Block count:              {blocks}")),
        "{header}"
    );

    let listed = home.output(&["volume", "prune"]);
    assert_eq!(listed.code(), 1);
    assert!(listed.stderr().contains("data"), "{}", listed.stderr());
    assert_eq!(home.output(&["volume", "prune", "-f"]).ok(), "data\n");
    assert_eq!(home.output(&["volume", "ls", "-q"]).ok(), "");
    let left = std::fs::read_dir(home.store().join("volumes")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn wrong_requests_about_volumes_name_their_reason() {
    let home = Home::empty();
    home.output(&["volume", "create", "--size", "16M", "data"])
        .ok();
    for (words, code, message) in [
        (&["create", "data"][..], 1, "there is one already"),
        (&["create", "../data"], 1, "invalid volume name"),
        (&["create", "--size", "4k", "small"], 1, "at least 16 MiB"),
        (
            &["create", "--size", "many", "x1"],
            2,
            "expected a number of bytes",
        ),
        (&["create", "--size", "17T", "large"], 1, "16 TiB at most"),
        (&["resize", "data", "15M"], 1, "at least 16 MiB"),
        (&["resize", "none", "20M"], 1, "no such volume"),
        (&["inspect", "none"], 1, "no such volume"),
        (&["rm", "none"], 1, "no such volume"),
    ] {
        let finished = home.output(&[&["volume"], words].concat());
        assert_eq!(finished.code(), code, "{words:?}: {}", finished.stderr());
        assert!(finished.stderr().contains(message), "{}", finished.stderr());
    }
    home.output(&["volume", "rm", "-f", "none"]).ok();
    home.output(&["volume", "resize", "data", "32M"]).ok();
    let shrunk = home.output(&["volume", "resize", "data", "16M"]);
    assert!(
        shrunk.stderr().contains("can't shrink"),
        "{}",
        shrunk.stderr()
    );

    // What uses a disk has it locked, whatever it is.
    let disk = home.store().join("volumes/data/disk.ext4");
    let user = File::open(disk).unwrap();
    user.lock_shared().unwrap();
    for words in [&["rm", "data"][..], &["resize", "data", "64M"]] {
        let refused = home.output(&[&["volume"], words].concat());
        assert_eq!(refused.code(), 1);
        assert!(
            refused.stderr().contains("is in use"),
            "{}",
            refused.stderr()
        );
    }
    drop(user);
    home.output(&["volume", "rm", "data"]).ok();
}

/// A sandbox that says when it runs, and stays.
const STAYS: &str = "echo ready; exec sleep 1000";

#[test]
fn a_volume_outlives_its_sandboxes_and_has_one_writer() {
    let home = Home::new();
    let run = |mount: &str, script: &str| {
        home.output(&["run", "--rm", "-v", mount, "box", "sh", "-c", script])
    };
    // A new volume has what the image has there, with its owners.
    let script = "stat -c %u:%a /home/app; ls -A /home/app; \
                  echo kept >/home/app/file; touch -d @1 /home/app/old; ln -s file /home/app/link";
    let first = run("data:/home/app", script).ok();
    let again = "cat /data/link; stat -c %Y /data/old; stat -c %u:%a /data; ls -A /data/lost+found";
    let second = run("data:/data:ro", again);
    assert!(
        second.stdout().starts_with("kept\n1\n"),
        "{}",
        second.stdout()
    );
    assert_eq!(second.stdout().lines().nth(2), first.lines().next());
    // It has no other files: `lost+found` is elsewhere.
    assert!(
        second.stderr().contains("lost+found"),
        "{}",
        second.stderr()
    );
    e2fsprogs(&home, "data", "e2fsck", &["-fn"]);
    let refused = run(
        "data:/data:ro",
        "mount -o remount,rw /data; echo x >/data/file",
    );
    assert_ne!(refused.code(), 0);
    assert!(
        refused.stderr().contains("Read-only"),
        "{}",
        refused.stderr()
    );

    // One without a name goes with its sandbox.
    let script = "touch /anonymous/file; grep ' /anonymous ' /proc/mounts | cut -d' ' -f3";
    let own = [
        "run",
        "--rm",
        "-v",
        "/anonymous",
        "--security-opt",
        "no-new-privileges",
    ];
    let look = format!("{script}; grep NoNewPrivs /proc/self/status");
    let own = home.output(&[&own[..], &["box", "sh", "-c", &look]].concat());
    assert_eq!(own.ok(), "ext4\nNoNewPrivs:\t1\n");
    assert_eq!(home.output(&["volume", "ls", "-q"]).ok(), "data\n");

    // Another image's files are there without a copy; each mount of it is a directory.
    let image = "type=image,src=box,dst=/i";
    let passwd = "type=image,src=box,dst=/passwd,image-subpath=/etc";
    let script = "cmp /i/etc/passwd /passwd/passwd && stat -c %u /i/home/app; echo x >/i/x";
    let mounts = [
        "--mount", image, "--mount", passwd, "box", "sh", "-c", script,
    ];
    let inside = home.output(&[&["run", "--rm"], &mounts[..]].concat());
    assert_eq!(inside.stdout(), "0\n", "{}", inside.stderr());
    assert!(inside.stderr().contains("Read-only"), "{}", inside.stderr());

    // Many read it, or one writes to it.
    let stays = |name: &str, mount: &str| {
        let arguments = [
            "run", "--rm", "--name", name, "-v", mount, "box", "sh", "-c", STAYS,
        ];
        let mut running = home.start(&arguments);
        assert_eq!(running.line(), "ready");
        running
    };
    let reader = stays("reader", "data:/data:ro");
    assert!(run("data:/x:ro", "cat /x/file").ok().contains("kept"));
    let writer = run("data:/data", "true");
    assert_eq!(writer.code(), 125);
    assert!(
        writer.stderr().contains("sandbox reader reads it"),
        "{}",
        writer.stderr()
    );
    let refused = home.output(&["volume", "rm", "data"]);
    assert!(refused.stderr().contains("reader"), "{}", refused.stderr());
    home.output(&["stop", "-t", "0", "reader"]).ok();
    drop(reader);

    // A writer that is killed leaves a journal, which is replayed for readers.
    let writer = stays("writer", "data:/data");
    home.output(&["exec", "writer", "sh", "-c", "echo more >>/data/file; sync"])
        .ok();
    assert_eq!(run("data:/data:ro", "true").code(), 125);
    writer.signal(9);
    writer.wait();
    wait_until("the killed sandbox is gone", || home.sandboxes().is_empty());
    assert_eq!(run("data:/data:ro", "cat /data/file").ok(), "kept\nmore\n");
    assert_eq!(home.output(&["volume", "prune", "-f"]).ok(), "data\n");
}
