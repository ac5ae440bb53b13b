//! `mica exec`, `attach`, `wait` and `kill`: what other processes do with a running sandbox.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use crate::support::exec::{FLAGS, Sandbox, WAITS};
use crate::support::{Home, Running, wait, wait_until};

const KILL: i32 = 9;

/// Starts a detached sandbox called `it`.
fn detached<'a>(home: &'a Home, flags: &[&str], script: &str) -> Sandbox<'a> {
    let start = ["run", "-d", "--rm", "--name", "it"];
    let arguments = [&start[..], flags, &["box", "sh", "-c", script]].concat();
    home.output(&arguments).ok();
    Sandbox { home, name: "it" }
}

#[test]
#[ignore = "needs a built guest"]
fn commands_run_beside_the_first_one() {
    let home = Home::new();
    let sandbox = detached(&home, &FLAGS, WAITS);
    sandbox.has_exit_codes();
    sandbox.has_surroundings();
    sandbox.lists_processes();
    sandbox.ends_with_its_caller();

    // The end of the sandbox is that of its commands.
    let running = sandbox.ready("echo ready; exec sleep 1000");
    home.output(&["stop", "it"]).ok();
    assert_eq!(running.wait(), 137);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_hundred_commands_run_at_once() {
    let home = Home::new();
    let sandbox = detached(&home, &[], WAITS);
    sandbox.runs_at_once(100);
    home.output(&["kill", "it"]).ok();
    wait_until("it is gone", || home.sandboxes().is_empty());
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn tens_of_megabytes_pass_in_and_out_whole() {
    let home = Home::new();
    let sandbox = detached(&home, &[], WAITS);
    sandbox.passes_on(40_000_000);
    home.output(&["rm", "-f", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn clients_attach_to_the_first_command_signal_it_and_wait_for_its_end() {
    let home = Home::new();
    let script = "trap 'echo caught; exit 7' TERM; while :; do echo tick; sleep 0.1; done & \
                  while read line; do echo got $line; done";
    let start = ["run", "-d", "-i", "--name", "it"];
    let arguments = [&start[..], &["box", "sh", "-c", script]].concat();
    home.output(&arguments).ok();
    let attached = |flags: &[&str]| {
        let mut mica = home.mica(&[&["attach"], flags, &["it"]].concat());
        mica.stdin(Stdio::piped());
        Running::new(mica)
    };
    let until = |running: &mut Running, text: &str| loop {
        let line = running.line();
        assert_ne!(line, "", "no {text:?}");
        if line == text {
            return;
        }
    };
    let mut first = attached(&[]);
    let mut stdin = first.stdin().unwrap();
    // Until it is attached, its input waits in the pipe.
    writeln!(stdin, "one").unwrap();
    until(&mut first, "got one");
    let mut second = attached(&["--no-stdin"]);
    until(&mut second, "tick");
    writeln!(stdin, "two").unwrap();
    until(&mut first, "got two");
    until(&mut second, "got two");
    // Neither the end of a client nor that of its input is that of the command.
    second.signal(KILL);
    second.wait();
    drop(stdin);
    until(&mut first, "tick");
    let mut third = attached(&[]);
    let mut stdin = third.stdin().unwrap();
    writeln!(stdin, "three").unwrap();
    until(&mut third, "got three");
    until(&mut first, "got three");
    // One whose reader is gone ends, and nothing else does.
    let unread = attached(&["--no-stdin"]);
    assert_eq!(wait(&mut unread.close()), 141);

    let waiting = [&["wait", "it", "it"][..], &["wait", "--json", "it"]];
    let mut waiting = waiting.map(|arguments| home.start(arguments));
    assert_eq!(home.output(&["kill", "-s", "TERM", "it"]).ok(), "it\n");
    until(&mut third, "caught");
    assert_eq!((first.wait(), third.wait()), (7, 7));
    assert_eq!([waiting[0].line(), waiting[0].line()], ["7", "7"]);
    let mut json = String::new();
    while !json.ends_with(']') {
        json += &waiting[1].line();
    }
    assert!(json.contains("\"exit_code\": 7"), "{json}");
    assert_eq!(home.output(&["wait", "it"]).ok(), "7\n");
    let log = home.output(&["logs", "it"]).ok();
    assert!(log.contains("got three\n"), "{log}");
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn an_idle_sandbox_lives_until_it_is_stopped_or_unused() {
    let home = Home::new();
    let disk = ["--upper", "disk:64m", "--idle-timeout", "1h"];
    let start = [&["run", "-d", "--idle", "--name", "it"], &disk[..]].concat();
    home.output(&[&start[..], &["-e", "A=1", "box"]].concat())
        .ok();
    let it = Sandbox {
        home: &home,
        name: "it",
    };
    assert_eq!(
        it.script(&[], "echo $A; pwd; echo kept >/kept").ok(),
        "1\n/srv\n"
    );
    assert!(home.output(&["ps"]).ok().contains("(idle)"));
    // It has no command, and what ran was none.
    let kill = home.output(&["kill", "it"]);
    assert_eq!(kill.code(), 1);
    assert!(kill.stderr().contains("no command"), "{}", kill.stderr());
    home.output(&["stop", "it"]).ok();
    home.output(&["start", "it"]).ok();
    assert_eq!(it.exec(&[], &["cat", "/kept"]).ok(), "kept\n");

    // Used again and again, it stays, however long what uses it is silent.
    let script = |file| format!("echo ready; until [ -e {file} ]; do sleep 0.1; done; sleep 1.5");
    let first = it.ready(&script("/first"));
    let update = ["update", "--idle-timeout", "1", "it"];
    assert_eq!(home.output(&update).ok(), "it\n");
    let second = it.ready(&script("/second"));
    it.exec(&[], &["touch", "/first"]).ok();
    assert_eq!(first.wait(), 0);
    let waiting = home.start(&["wait", "it"]);
    wait_until("a client waits", || waiting.is_connected());
    it.exec(&[], &["touch", "/second"]).ok();
    assert_eq!(second.wait(), 0);
    // Sleep: its idle timeout passes, and it stays.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(home.output(&["ps", "-q"]).ok().lines().count(), 1);
    // Then it ends by itself.
    waiting.signal(KILL);
    waiting.wait();
    wait_until("it ends", || home.output(&["ps", "-q"]).ok().is_empty());
    home.output(&update).ok();
    home.output(&["rm", "it"]).ok();

    let short = ["run", "-d", "--rm", "--idle", "--max-life", "0.5", "box"];
    home.output(&short).ok();
    wait_until("it ends at its age", || home.sandboxes().is_empty());
    let wrong = home.output(&["run", "-d", "--idle", "box", "true"]);
    assert_eq!(wrong.code(), 125);
    home.assert_nothing_left();
}
