//! Sandboxes whose changes go to a disk: what survives, and another start.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{Home, Running, assert_clean, wait_until};

const KILL: i32 = 9;
const TERM: i32 = 15;

/// Returns the path of the only sandbox's disk.
fn disk(home: &Home) -> PathBuf {
    let sandboxes = home.sandboxes();
    let [directory] = sandboxes.as_slice() else {
        panic!("{sandboxes:?}");
    };
    directory.join("upper.ext4")
}

/// Checks the exit code of a stop without grace, which depends on which signal is faster.
#[track_caller]
fn assert_stopped(code: i32) {
    assert!(matches!(code, 137 | 143), "{code}");
}

/// Checks all earlier rounds, adds one and flushes it, reports that, and then changes files that
/// are not flushed.
const ROUND: &str = r#"
    i=0
    while [ -e round$i ]; do
        [ "$(md5sum < round$i)" = "$(cat sum$i)" ] || { echo "round $i is damaged"; exit 9; }
        i=$((i + 1))
    done
    head -c 300000 /dev/urandom > new
    md5sum < new | dd of=sum$i conv=fsync 2> /dev/null
    dd if=new of=round$i bs=64k conv=fsync 2> /dev/null
    echo "round $i is safe"
    [ -e last ] && exit 0
    while :; do
        dd if=/dev/zero of=junk bs=64k count=20 2> /dev/null
        mkdir d$i; mv d$i e$i; cp new e$i; rm -r junk e$i
    done"#;

#[test]
#[ignore = "needs a built guest"]
fn flushed_writes_survive_every_kind_of_end() {
    let home = Home::new();
    let first = [
        "run",
        "--name",
        "it",
        "--upper",
        "disk:256m",
        "box",
        "sh",
        "-c",
        ROUND,
    ];
    let again = ["start", "-a", "it"];
    for round in 0..4 {
        let arguments: &[&str] = if round == 0 { &first } else { &again };
        let mut running = home.start(arguments);
        assert_eq!(running.line(), format!("round {round} is safe"));
        if round == 2 {
            // Kills the creator, which ends the machine: the next start waits for that.
            running.signal(KILL);
            assert_eq!(running.wait(), -KILL);
        } else {
            for pid in home.machines() {
                let kill = Command::new("kill")
                    .args(["-KILL", &pid.to_string()])
                    .status();
                assert!(kill.unwrap().success());
            }
            assert_eq!(running.wait(), 125);
        }
    }
    // An orderly stop leaves nothing to recover.
    let mut running = home.start(&again);
    assert_eq!(running.line(), "round 4 is safe");
    home.output(&["stop", "-t", "0", "it"]).ok();
    assert_stopped(running.wait());
    assert_clean(&disk(&home));
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_is_started_again_where_it_ended() {
    let home = Home::new();
    // The script never flushes: an orderly end loses nothing all the same.
    let script = "echo x >> log; chmod 700 /; n=$(wc -l < log); echo $n; stat -c %a /; \
                  case $n in 1) ;; 3) exit 3;; *) while :; do sleep 0.05; done;; esac";
    let id = home
        .output(&[
            "run", "-d", "--name", "it", "--upper", "disk", "box", "sh", "-c", script,
        ])
        .ok();
    assert_eq!(id.trim_end().len(), 32);
    wait_until("it ends by itself", || {
        home.output(&["ps", "-q"]).ok().is_empty()
    });
    assert_clean(&disk(&home));
    let list = home.output(&["ps", "-a", "--json"]).json();
    assert_eq!(list[0]["state"], "exited");
    assert_eq!(list[0]["upper"]["kind"], "disk");
    // 8 GiB of holes.
    let metadata = fs::metadata(disk(&home)).unwrap();
    assert_eq!(metadata.len(), 8 << 30);
    assert!(metadata.blocks() * 512 < 64 << 20, "{}", metadata.blocks());
    // The image is still in use.
    let used = home.output(&["rmi", "box"]);
    assert!(used.stderr().contains("in use"), "{}", used.stderr());

    let mut running = home.start(&["start", "-a", "it"]);
    assert_eq!((running.line(), running.line()), ("2".into(), "700".into()));
    // The sandbox runs already.
    let second = home.output(&["start", "it"]);
    assert_eq!((second.code(), second.stdout().as_str()), (1, ""));
    assert!(
        second.stderr().contains("is running"),
        "{}",
        second.stderr()
    );
    running.signal(TERM);
    assert_eq!(running.wait(), 143);
    let last = home.output(&["start", "-a", "it"]);
    assert_eq!(
        (last.code(), last.stdout().as_str()),
        (3, "3\n700\n"),
        "{}",
        last.stderr()
    );
    assert!(home.output(&["ps", "-a"]).ok().contains("Exited (3)"));
    home.output(&["rm", "it"]).ok();
    home.output(&["rmi", "box"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_disk_holds_more_than_memory_and_gives_back_what_is_deleted() {
    let home = Home::new();
    let script = "dd if=/dev/zero bs=1M count=150 2>/dev/null | tr '\\0' x > big; md5sum < big; \
                  rm big; sync; df -m / | tail -1";
    let run = home.output(&[
        "run", "-m", "96m", "--name", "it", "--upper", "disk:1g", "box", "sh", "-c", script,
    ]);
    let text = run.ok();
    let expected = Command::new("sh")
        .args(["-c", "head -c 157286400 /dev/zero | tr '\\0' x | md5sum"])
        .output()
        .unwrap();
    assert!(
        text.starts_with(&*String::from_utf8_lossy(&expected.stdout)),
        "{text}"
    );
    let blocks = fs::metadata(disk(&home)).unwrap().blocks();
    assert!(blocks * 512 < 64 << 20, "{blocks}");
    assert_clean(&disk(&home));
    home.output(&["rm", "it"]).ok();

    // Nothing is left of a sandbox with `--rm`.
    home.output(&["run", "--rm", "--upper", "disk:64m", "box", "touch", "/x"])
        .ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn detached_sandboxes_report_why_they_do_not_start() {
    let home = Home::new();
    let missing = home.output(&["run", "-d", "--rm", "box", "/nope"]);
    assert_eq!((missing.code(), missing.stdout().as_str()), (127, ""));
    assert!(missing.stderr().contains("/nope"), "{}", missing.stderr());
    home.assert_nothing_left();

    // With changes in memory: the sandbox runs, and can't be started again.
    home.output(&["run", "-d", "-i", "--name", "it", "box", "cat"])
        .ok();
    assert_eq!(home.machines().len(), 1);
    home.output(&["stop", "-t", "0", "it"]).ok();
    let again = home.output(&["start", "it"]);
    assert_eq!(again.code(), 1);
    assert!(
        again.stderr().contains("--upper disk"),
        "{}",
        again.stderr()
    );
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn stdin_is_passed_on_to_a_command_that_was_made_with_it() {
    let home = Home::new();
    home.output(&[
        "run", "-i", "--name", "it", "--upper", "disk:64m", "box", "cat",
    ])
    .ok();
    let mut command = home.mica(&["start", "-a", "-i", "it"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), &*output.stdout),
        (Some(0), &b"hello"[..])
    );
    // Without -i, stdin stays open and silent.
    let running: Running = home.start(&["start", "-a", "it"]);
    wait_until("the command runs", || {
        home.output(&["ps"]).ok().contains("Up ")
    });
    home.output(&["stop", "-t", "0", "it"]).ok();
    assert_stopped(running.wait());
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}
