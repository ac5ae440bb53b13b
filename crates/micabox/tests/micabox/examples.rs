//! The examples as a user runs them: each is its own `mica`.

use std::process::Command;

use crate::support::{Fixture, guest};

/// Runs an example that is built beside this program. Returns its stdout.
fn run(example: &str, arguments: &[&str]) -> String {
    let fixture = Fixture::new();
    let program = std::env::current_exe().unwrap();
    let profile = program.ancestors().nth(2).unwrap();
    let output = Command::new(profile.join("examples").join(example))
        .args(arguments)
        .env("MICABOX_HOME", fixture.store.root())
        .env("MICABOX_GUEST", guest().kernel.parent().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"", "{output:?}");
    assert!(fixture.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs a built guest"]
fn the_hello_example_prints_hello() {
    assert_eq!(run("hello", &["box", "echo", "hello"]), "hello\n");
}

#[test]
#[ignore = "needs a built guest"]
fn stream_reads_while_the_command_writes() {
    let lines: String = (1..=10).map(|line| format!("line {line}\n")).collect();
    assert_eq!(run("stream", &["box"]), lines + "Signaled(15)\n");
}

#[test]
#[ignore = "needs a built guest"]
fn snapshot_starts_two_from_one_disk() {
    assert_eq!(run("snapshot", &["box"]), "prepared\n1\nprepared\n2\n");
}
