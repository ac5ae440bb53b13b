//! `mica diff`, `mica commit` and `mica snapshot`: changes on a disk, read from outside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::support::{Holding, Home, assert_clean, wait_until};

/// Lists everything below /srv except the sizes of directories, and hashes contents.
const LOOK: &str = "cd /srv; find . ! -type d -exec stat -c '%n %F %a %u %h %s %Y' {} + | sort; \
    find . -type d -exec stat -c '%n %a %u %Y' {} + | sort; \
    find . -type f ! -name sparse -exec md5sum {} + | sort; readlink link";

/// Makes changes of every kind.
const CHANGE: &str = "cd /srv; echo new > added; ln added hardlink; ln -s data link; mkfifo pipe; \
    mkdir -p dir/in; echo x > dir/in/side; chown 1000 dir/in/side; chmod 4750 dir/in/side; \
    rm data; rm -r hidden; rm -r kept; mkdir kept; echo fresh > kept/fresh; chmod 600 run; \
    truncate -s 5M sparse; echo end >> sparse; mkdir twice; rmdir twice; rm -r /home; echo > /home";

const CHANGES: &str = "C /home\nC /srv\nA /srv/added\nD /srv/data\nA /srv/dir\nA /srv/dir/in\n\
    A /srv/dir/in/side\nA /srv/hardlink\nD /srv/hidden\nC /srv/kept\nD /srv/kept/+page.svelte\n\
    A /srv/kept/fresh\nD /srv/kept/old\nA /srv/link\nA /srv/pipe\nC /srv/run\nA /srv/sparse\n";

#[test]
#[ignore = "needs a built guest"]
fn changes_are_listed_and_become_an_image() {
    let home = Home::new();
    let script = format!("{CHANGE}; {LOOK}");
    let disk = ["--upper", "disk:256m"];
    let run = [
        &["run", "--name", "it"],
        &disk[..],
        &["box", "sh", "-c", &script],
    ]
    .concat();
    let expected = home.output(&run).ok();
    assert_eq!(home.output(&["diff", "it"]).ok(), CHANGES);
    let id = home.output(&["commit", "-m", "why", "it", "mine"]).ok();
    assert!(id.starts_with("sha256:"), "{id}");

    // A sandbox of the new image looks the same and has no changes, with both kinds of root.
    for root in ["merged", "stacked"] {
        let name = ["--name", root, "--root", root];
        let run = [&["run"], &name[..], &disk, &["mine", "sh", "-c", LOOK]].concat();
        assert_eq!(home.output(&run).ok(), expected, "{root}");
        assert_eq!(home.output(&["diff", root]).ok(), "");
    }
    let config = home.output(&["inspect", "mine:latest"]).json();
    let config = &config[0]["image"]["config"];
    assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 4);
    assert_eq!(config["config"]["WorkingDir"], "/srv");

    // Changes in memory can't be read from outside.
    home.output(&["run", "--name", "memory", "box", "true"])
        .ok();
    let none = home.output(&["diff", "memory"]);
    assert_eq!(none.code(), 1);
    assert!(none.stderr().contains("--upper disk"), "{}", none.stderr());
    home.output(&["rm", "it", "merged", "stacked", "memory"])
        .ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_snapshot_is_one_moment_of_a_running_sandbox() {
    let home = Home::new();
    let script = "echo 1 | dd of=first conv=fsync 2>/dev/null; sync; echo ready; \
                  while :; do echo x > a; mv a b; rm b; done";
    let mut running = home.start(&[
        "run",
        "--name",
        "it",
        "--upper",
        "disk:256m",
        "box",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(running.line(), "ready");
    let changes = home.output(&["diff", "it"]).ok();
    assert!(
        changes.contains("C /srv\n") && changes.contains("A /srv/first\n"),
        "{changes}"
    );
    assert_eq!(
        home.output(&["snapshot", "create", "it", "moment"]).ok(),
        "moment\n"
    );
    let again = home.output(&["snapshot", "create", "it", "moment"]);
    assert!(again.stderr().contains("already"), "{}", again.stderr());
    // The sandbox continues.
    assert!(home.output(&["ps"]).ok().contains("Up "));
    home.output(&["stop", "-t", "0", "it"]).ok();
    running.wait();
    home.output(&["rm", "it"]).ok();

    let disk = home.store().join("sandboxes/snapshot-moment/disk.ext4");
    assert_clean(&disk);
    let used = home.output(&["rmi", "box"]);
    assert!(used.stderr().contains("in use"), "{}", used.stderr());

    for _ in 0..2 {
        // Each sandbox has its own copy.
        let script = "cat first; echo 2 > first; ls";
        let run = home.output(&["run", "--rm", "--from", "moment", "sh", "-c", script]);
        let text = run.ok();
        assert!(
            text.starts_with("1\n") && text.contains("first\nhard\n"),
            "{text}"
        );
    }
    let list = home.output(&["snapshot", "ls", "--json"]).json();
    assert_eq!(
        (&list[0]["name"], &list[0]["sandbox"]),
        (&"moment".into(), &"it".into())
    );

    // As one file; a damaged one is refused.
    let file = home.path().join("moment.snapshot");
    let path = file.to_str().unwrap();
    home.output(&["snapshot", "export", "moment", path]).ok();
    assert_eq!(
        home.output(&["snapshot", "import", path, "twin"]).ok(),
        "twin\n"
    );
    let twin = home.store().join("sandboxes/snapshot-twin/disk.ext4");
    let same = Command::new("cmp").args([&disk, &twin]).status().unwrap();
    assert!(same.success());
    assert!(fs::metadata(&twin).unwrap().blocks() * 512 < 64 << 20);
    home.output(&["snapshot", "rm", "twin"]).ok();
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    for (length, at) in [
        (bytes.len(), middle),
        (middle, 0),
        (bytes.len(), bytes.len() - 1),
    ] {
        bytes[at] ^= 1;
        fs::write(&file, &bytes[..length]).unwrap();
        assert_eq!(home.output(&["snapshot", "import", path, "twin"]).code(), 1);
        bytes[at] ^= 1;
    }
    assert!(!twin.parent().unwrap().exists());
    assert_eq!(home.output(&["snapshot", "rm", "moment"]).ok(), "moment\n");
    let gone = home.output(&["run", "--rm", "--from", "moment"]);
    assert_eq!(gone.code(), 125);
    assert!(
        gone.stderr().contains("no such snapshot"),
        "{}",
        gone.stderr()
    );
    home.output(&["rmi", "box"]).ok();
    home.assert_nothing_left();
}

/// Returns the state of a process: `S`, `T`...
fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
#[ignore = "needs a built guest"]
fn a_paused_machine_continues_when_the_client_is_killed() {
    let home = Home::new();
    let script = "echo ready; while :; do sleep 0.05; done";
    let disk = ["--upper", "disk:64m"];
    let run = [
        &["run", "--name", "it"],
        &disk[..],
        &["box", "sh", "-c", script],
    ]
    .concat();
    let mut running = home.start(&run);
    assert_eq!(running.line(), "ready");
    let [machine] = home.machines()[..] else {
        panic!("one machine");
    };
    // The kernel closes the connection of a process that is killed.
    let holding = Holding::new(&home, "it");
    assert_eq!(process_state(machine), Some('T'));
    drop(holding);
    wait_until("the machine goes on", || {
        process_state(machine) != Some('T')
    });
    home.output(&["snapshot", "create", "it", "moment"]).ok();
    // The client does not wait for the thaw.
    wait_until("it goes on once more", || {
        process_state(machine) != Some('T')
    });
    home.output(&["stop", "-t", "0", "it"]).ok();
    running.wait();
    home.output(&["rm", "it"]).ok();
    home.output(&["snapshot", "rm", "moment"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn without_kvm_no_memory_is_saved() {
    let home = Home::new();
    let start = ["run", "--rm", "--backend", "qemu", "--name", "it", "box"];
    let command = ["sh", "-c", "echo up; exec sleep 1000"];
    let mut sandbox = home.start(&[&start[..], &command].concat());
    assert_eq!(sandbox.line(), "up");
    for (arguments, code) in [
        (&["snapshot", "create", "--memory", "it", "moment"][..], 1),
        (&["fork", "it"], 125),
    ] {
        let refused = home.output(arguments);
        assert_eq!((refused.code(), refused.stdout().as_str()), (code, ""));
        let text = refused.stderr();
        assert!(
            text.contains("need KVM") && text.contains("mica doctor"),
            "{text}"
        );
    }
    // Nothing is left of the attempts, and the sandbox continues.
    assert_eq!(
        home.output(&["snapshot", "ls", "--json"]).json(),
        serde_json::json!([])
    );
    assert_eq!(home.sandboxes().len(), 1);
    home.output(&["stop", "-t", "0", "it"]).ok();
    sandbox.wait();
}
