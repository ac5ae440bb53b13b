//! Sandboxes that are frozen for a copy of their disk, by a client that is stopped or killed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::{Holding, Home, PATIENCE, Running, assert_clean, wait, wait_until};

const KILL: i32 = 9;
// In place of SIGINT, which is ignored by tests that were started in the background.
const TERM: i32 = 15;

/// Starts a sandbox `it` with a disk.
fn running(home: &Home) -> Running {
    let script = "echo ready; while :; do sleep 0.05; done";
    let run = ["run", "--name", "it", "--upper", "disk:64m"];
    let mut running = home.start(&[&run[..], &["box", "sh", "-c", script]].concat());
    assert_eq!(running.line(), "ready");
    running
}

/// Returns whether a process has an unnamed file open.
fn has_unnamed_file(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut files = files
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok());
    files.any(|file| file.to_string_lossy().ends_with(" (deleted)"))
}

fn signal(pid: u32, signal: i32) {
    let arguments = [format!("-{signal}"), pid.to_string()];
    assert!(
        Command::new("kill")
            .args(arguments)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
#[ignore = "needs a built guest"]
fn an_interrupted_copy_leaves_nothing() {
    let home = Home::new();
    let sandbox = running(&home);
    let before = home.files_of("it");
    for (number, command) in [
        (KILL, "diff"),
        (TERM, "diff"),
        (KILL, "commit"),
        (TERM, "commit"),
    ] {
        // The command waits for the other client, with its own file open.
        let held = Holding::new(&home, "it");
        let arguments: &[&str] = match command {
            "commit" => &["commit", "it", "mine"],
            command => &[command, "it"],
        };
        let mut copying = home.mica(arguments);
        let mut copying = copying.stdout(Stdio::null()).spawn().unwrap();
        wait_until("it has begun", || {
            has_unnamed_file(copying.id()) || home.files_of("it") != before
        });
        signal(copying.id(), number);
        assert_eq!(wait(&mut copying), -number);
        drop(held);
        assert_eq!(home.files_of("it"), before, "{command}");
    }
    home.output(&["diff", "it"]).ok();
    assert_eq!(home.files_of("it"), before);
    home.output(&["stop", "-t", "0", "it"]).ok();
    sandbox.wait();
}

#[test]
#[ignore = "needs a built guest"]
fn a_silent_client_pauses_a_sandbox_for_seconds_only() {
    let home = Home::new();
    let sandbox = running(&home);
    // Like a `mica diff` that Ctrl-Z has stopped.
    let begun = Instant::now();
    assert_eq!(Holding::new(&home, "it").wait_for_end(), "not_frozen");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    home.output(&["diff", "it"]).ok();

    let held = Holding::new(&home, "it");
    home.output(&["stop", "-t", "0", "it"]).ok();
    assert_eq!(held.wait_for_end(), "ending");
    sandbox.wait();
    assert_clean(&home.directory_of("it").join("upper.ext4"));
}

#[test]
#[ignore = "needs a built guest"]
fn a_paused_sandbox_does_nothing_until_it_is_resumed_or_ended() {
    let home = Home::new();
    // USR1 is noted when it arrives; TERM ends the command in order.
    let script = "trap 'echo late' USR1; trap 'exit 4' TERM; echo ready; \
                  while :; do echo tick; sleep 0.05; done";
    let run = ["run", "-d", "--name", "it", "--upper", "disk:64m"];
    home.output(&[&run[..], &["box", "sh", "-c", script]].concat())
        .ok();
    let ticks = || {
        home.output(&["logs", "it"])
            .stdout()
            .matches("tick")
            .count()
    };
    wait_until("it runs", || ticks() > 0);
    let refused = |arguments: &[&str], words: &str| {
        let finished = home.output(arguments);
        assert!(finished.code() != 0, "{arguments:?}");
        let said = finished.stderr();
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    refused(&["unpause", "it"], "is not paused");
    assert_eq!(home.output(&["pause", "it"]).ok(), "it\n");
    let seen = ticks();
    for arguments in [
        &["exec", "it", "true"][..],
        &["attach", "it"],
        &["top", "it"],
        &["pause", "it"],
        &["start", "it"],
    ] {
        refused(arguments, " is paused");
    }
    refused(&["rm", "it"], "is running");
    let line = home.output(&["ps", "-f", "status=paused", "--format", "{{.Status}}"]);
    assert!(line.ok().ends_with("(Paused)\n"));
    // Its disk can be read, and it stays as it is: a signal arrives when it is resumed.
    assert!(home.output(&["diff", "it"]).code() == 0);
    home.output(&["kill", "-s", "USR1", "it"]).ok();
    home.output(&["rename", "it", "that"]).ok();
    let log = home.output(&["logs", "that"]).ok();
    assert_eq!(
        (log.matches("tick").count(), log.contains("late")),
        (seen, false)
    );
    home.output(&["unpause", "that"]).ok();
    wait_until("it continues", || {
        let log = home.output(&["logs", "that"]).ok();
        log.matches("tick").count() > seen && log.contains("late")
    });

    // A stop resumes it, so its command ends in order; so does the signal that a stop sends.
    home.output(&["pause", "that"]).ok();
    home.output(&["stop", "that"]).ok();
    let code = || home.output(&["wait", "that"]).ok();
    assert_eq!(code(), "4\n");
    home.output(&["start", "that"]).ok();
    home.output(&["pause", "that"]).ok();
    home.output(&["kill", "that"]).ok();
    assert_eq!(code(), "137\n");
    home.output(&["start", "that"]).ok();
    home.output(&["pause", "that"]).ok();
    home.output(&["rm", "-f", "that"]).ok();
    home.assert_nothing_left();
}
