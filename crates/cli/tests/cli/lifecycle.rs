//! How sandboxes end, and what they leave.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{Home, Running, wait, wait_until};

const INT: i32 = 2;
const KILL: i32 = 9;
const TERM: i32 = 15;

/// Prints a line when it runs; ends only by a signal.
const WAITS: &str = "echo ready; while :; do sleep 0.05; done";

/// Starts a sandbox and waits for its command's first line.
fn ready(home: &Home, flags: &[&str], script: &str) -> Running {
    let arguments = [&["run"], flags, &["box", "sh", "-c", script]].concat();
    let mut running = home.start(&arguments);
    assert_eq!(running.line(), "ready");
    running
}

#[test]
#[ignore = "needs a built guest"]
fn an_interrupt_reaches_the_command() {
    let home = Home::new();
    let script = format!("trap 'echo caught; exit 5' INT; {WAITS}");
    let mut running = ready(&home, &["--rm"], &script);
    running.signal(INT);
    assert_eq!(running.line(), "caught");
    assert_eq!(running.wait(), 5);
    home.assert_nothing_left();

    let running = ready(&home, &["--rm"], WAITS);
    running.signal(INT);
    assert_eq!(running.wait(), 130);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_stubborn_command_is_killed_in_the_end() {
    let home = Home::new();
    let script = format!("trap '' INT TERM; {WAITS}");
    let running = ready(&home, &["--rm", "--stop-timeout", "0"], &script);
    running.signal(INT);
    running.signal(TERM);
    assert_eq!(running.wait(), 137);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn sigterm_stops_a_sandbox_in_order() {
    let home = Home::new();
    let script = format!("trap 'echo stopping; exit 6' QUIT; {WAITS}");
    let mut running = ready(&home, &["--rm", "--stop-signal", "QUIT"], &script);
    running.signal(TERM);
    assert_eq!(running.line(), "stopping");
    assert_eq!(running.wait(), 6);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_signal_during_the_boot_gives_up() {
    let home = Home::new();
    // If it has booted by then, the command ends with the same code.
    let running = home.start(&["run", "--rm", "box", "sleep", "100000"]);
    wait_until("the machine starts", || !home.machines().is_empty());
    running.signal(TERM);
    assert_eq!(running.wait(), 143);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_closed_pipe_ends_everything() {
    let home = Home::new();
    for script in ["yes ready", "echo ready; sleep 100000"] {
        let mut child = ready(&home, &["--rm"], script).close();
        assert_eq!(wait(&mut child), 141, "{script}");
        home.assert_nothing_left();
    }
}

#[test]
#[ignore = "needs a built guest"]
fn a_killed_mica_leaves_no_machine_and_a_record_until_removed() {
    let home = Home::new();
    let running = ready(&home, &["--name", "orphan"], WAITS);
    assert_eq!(home.machines().len(), 1);
    running.signal(KILL);
    assert_eq!(running.wait(), -KILL);
    home.wait_for_no_machine();
    // The machine holds the sandbox's lock until its last descriptor is closed.
    wait_until("it is dead", || home.output(&["ps", "-q"]).ok().is_empty());
    let list = home.output(&["ps", "-a", "--json"]).json();
    assert_eq!(
        (&list[0]["name"], &list[0]["state"]),
        (&"orphan".into(), &"dead".into())
    );
    // Nothing of it prevents removals.
    home.output(&["rmi", "box"]).ok();
    home.output(&["rm", "orphan"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_killed_owner_leaves_no_machine_and_a_record_until_removed() {
    let home = Home::new();
    let running = ready(&home, &["--name", "orphan"], WAITS);
    home.kill_owner();
    assert_eq!(running.wait(), 125);
    home.wait_for_no_machine();
    wait_until("it is dead", || home.output(&["ps", "-q"]).ok().is_empty());
    let list = home.output(&["ps", "-a", "--json"]).json();
    assert_eq!(
        (&list[0]["name"], &list[0]["state"]),
        (&"orphan".into(), &"dead".into())
    );
    home.output(&["rm", "orphan"]).ok();
    home.assert_nothing_left();
}

/// After a reboot, the store is as it was when the power failed, no lock is held, and the processes of
/// the records may be others: here, the ones that run on in the original of the store.
#[test]
#[ignore = "needs a built guest"]
fn a_reboot_leaves_dead_sandboxes_that_start_and_are_removed() {
    let home = Home::new();
    let upper = ["--upper", "disk:64m"];
    for (name, flags) in [("kept", &upper[..]), ("gone", &[]), ("auto", &["--rm"])] {
        let run = ["run", "-d", "--idle", "--name", name];
        home.output(&[&run[..], flags, &["box"]].concat()).ok();
    }
    let script = "echo before >/file; sync";
    home.output(&["exec", "kept", "sh", "-c", script]).ok();

    let rebooted = Home::empty();
    let copied = Command::new("cp")
        .args(["-a", "--sparse=always"])
        .args([home.store(), rebooted.store()])
        .status();
    assert!(copied.unwrap().success());
    for sandbox in rebooted.sandboxes() {
        let state = sandbox.join("state.json");
        let record = fs::read(&state).unwrap();
        let mut record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        for process in ["owner", "machine"] {
            let boot = &mut record[process]["boot"];
            *boot = (boot.as_u64().unwrap() ^ 1).into();
        }
        fs::write(&state, record.to_string()).unwrap();
    }

    let list = rebooted.output(&["ps", "-a", "--json"]).json();
    let states = |list: &serde_json::Value| {
        let sandboxes = list.as_array().unwrap().iter();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let states = sandboxes.map(|one| (text(&one["name"]), text(&one["state"])));
        states.collect::<Vec<_>>()
    };
    let dead = |name: &str| (name.to_owned(), "dead".to_owned());
    assert_eq!(states(&list), [dead("gone"), dead("kept")]);
    rebooted.output(&["start", "kept"]).ok();
    let file = rebooted.output(&["exec", "kept", "cat", "/file"]).ok();
    assert_eq!(file, "before\n");
    rebooted.output(&["rm", "-f", "kept", "gone"]).ok();
    rebooted.assert_nothing_left();

    let list = home.output(&["ps", "--json"]).json();
    assert_eq!(states(&list).len(), 3);
    assert_eq!(home.machines().len(), 3);
    for name in ["kept", "gone", "auto"] {
        home.output(&["exec", name, "true"]).ok();
        home.output(&["rm", "-f", name]).ok();
    }
    home.assert_nothing_left();
}

/// Its machine may still be taken apart then: by the owner, or by the kernel when that is killed.
#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_in_memory_is_over_for_all_commands_when_run_returns() {
    let home = Home::new();
    for flags in [&["--rm", "--name", "again"][..], &["--name", "again"]] {
        let running = ready(&home, flags, &format!("trap 'exit 6' TERM; {WAITS}"));
        let owner = home.owner().to_string();
        running.signal(TERM);
        assert_eq!(running.wait(), 6);
        Command::new("kill").args(["-9", &owner]).output().unwrap();
        if flags[0] == "--rm" {
            assert_eq!(home.output(&["ps", "-a", "-q"]).ok(), "");
        } else {
            let list = home.output(&["ps", "-a", "--json"]).json();
            assert_eq!(list[0]["state"], "exited");
            home.output(&["rm", "again"]).ok();
        }
        assert_eq!(home.sandboxes(), [""; 0].map(PathBuf::from));
        home.wait_for_no_machine();
    }
}

#[test]
#[ignore = "needs a built guest"]
fn a_killed_mica_with_rm_leaves_no_record() {
    let home = Home::new();
    let running = ready(&home, &["--rm"], WAITS);
    running.signal(KILL);
    running.wait();
    home.wait_for_no_machine();
    // The owner removes it after the machine.
    wait_until("the record is removed", || {
        home.output(&["ps", "-a", "-q"]).ok().is_empty()
    });
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_killed_machine_is_a_named_error() {
    let home = Home::new();
    let mut command = home.mica(&["run", "--name", "victim", "box", "sh", "-c", WAITS]);
    let errors = home.path().join("stderr");
    command.stderr(fs::File::create(&errors).unwrap());
    let mut running = Running::new(command);
    assert_eq!(running.line(), "ready");
    for pid in home.machines() {
        Command::new("kill")
            .args(["-KILL", &pid.to_string()])
            .status()
            .unwrap();
    }
    assert_eq!(running.wait(), 125);
    let errors = fs::read_to_string(errors).unwrap();
    assert!(
        errors.contains("killed") && errors.contains("signal 9"),
        "{errors}"
    );
    let record = home.output(&["inspect", "victim"]).json();
    assert_eq!(record[0]["sandbox"]["status"]["code"], 125);
}

#[test]
#[ignore = "needs a built guest"]
fn ps_stop_and_rm_follow_a_sandbox() {
    let home = Home::new();
    let running = ready(&home, &["--name", "web"], WAITS);
    let list = home.output(&["ps", "--json"]).json();
    assert_eq!(
        (&list[0]["name"], &list[0]["state"]),
        (&"web".into(), &"running".into())
    );
    let id = list[0]["id"].as_str().unwrap();
    assert!(home.output(&["ps"]).ok().contains("web"));

    let refused = home.output(&["rm", "web"]);
    assert_eq!(refused.code(), 1);
    assert!(refused.stderr().contains("running"), "{}", refused.stderr());
    let used = home.output(&["rmi", "box"]);
    assert!(used.stderr().contains("in use"), "{}", used.stderr());

    assert_eq!(
        home.output(&["stop", &id[..8]]).ok(),
        format!("{}\n", &id[..8])
    );
    assert_eq!(running.wait(), 143);
    assert_eq!(home.output(&["ps", "-q"]).ok(), "");
    assert!(home.output(&["ps", "-a"]).ok().contains("Exited (143)"));
    // Stopping a stopped sandbox is not an error.
    home.output(&["stop", "web"]).ok();
    assert_eq!(home.output(&["rm", "web"]).ok(), "web\n");
    assert_eq!(home.output(&["rm", "web"]).code(), 1);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn forced_removal_and_a_stop_without_grace() {
    let home = Home::new();
    let script = format!("trap '' TERM; {WAITS}");
    let stubborn = ready(&home, &["--name", "one"], &script);
    home.output(&["stop", "-t", "0", "one"]).ok();
    assert_eq!(stubborn.wait(), 137);
    let fleeting = ready(&home, &["--rm", "--name", "two"], &script);
    home.output(&["rm", "-f", "one", "two"]).ok();
    assert_eq!(fleeting.wait(), 137);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_creator_that_hangs_does_not_keep_its_sandbox() {
    const STOP: i32 = 19;
    const CONT: i32 = 18;
    let home = Home::new();
    let running = ready(&home, &["--name", "hung"], WAITS);
    running.signal(STOP);
    // The sandbox ends while its creator is stopped; the creator notices when it continues.
    let mut stopping = home.mica(&["rm", "-f", "hung"]).spawn().unwrap();
    home.wait_for_no_machine();
    running.signal(CONT);
    assert_eq!(wait(&mut stopping), 0);
    running.wait();
    assert_eq!(home.output(&["ps", "-a", "-q"]).ok(), "");
}

#[test]
#[ignore = "needs a built guest"]
fn two_sandboxes_run_at_once_but_not_under_one_name() {
    let home = Home::new();
    let first = ready(&home, &["--rm", "--name", "same"], WAITS);
    let second = home.output(&["run", "--rm", "--name", "same", "box", "true"]);
    assert_eq!(second.code(), 125);
    assert!(second.stderr().contains("in use"), "{}", second.stderr());
    let other = ready(&home, &["--rm", "--name", "other"], WAITS);
    assert_eq!(home.output(&["ps", "-q"]).ok().lines().count(), 2);
    assert_eq!(home.machines().len(), 2);
    for running in [first, other] {
        running.signal(TERM);
        assert_eq!(running.wait(), 143);
    }
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn of_several_starts_at_once_one_succeeds() {
    let home = Home::new();
    let run = [
        "run", "-d", "--name", "it", "--upper", "disk:64m", "box", "sh", "-c", WAITS,
    ];
    home.output(&run).ok();
    for _ in 0..3 {
        home.output(&["stop", "-t", "0", "it"]).ok();
        let start = || {
            let mut mica = home.mica(&["start", "it"]);
            let mica = mica.stdout(Stdio::piped()).stderr(Stdio::piped());
            mica.spawn().unwrap()
        };
        let starts: Vec<_> = (0..6).map(|_| start()).collect();
        let ends: Vec<_> = starts
            .into_iter()
            .map(|start| start.wait_with_output().unwrap())
            .collect();
        let (well, badly): (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.status.success());
        assert_eq!(well.len(), 1, "{ends:?}");
        for end in badly {
            let text = String::from_utf8_lossy(&end.stderr);
            assert!(text.contains("is running"), "{text}");
            assert_eq!(
                (end.status.code(), &*end.stdout),
                (Some(1), &b""[..]),
                "{text}"
            );
        }
        assert_eq!(home.machines().len(), 1);
    }
    home.output(&["rm", "-f", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn time_limits_end_commands() {
    let home = Home::new();
    let run = home.output(&["run", "--rm", "--timeout", "0.2", "box", "sleep", "100000"]);
    assert_eq!((run.code(), run.stderr().as_str()), (124, ""));
    // As process 1 it ignores TERM from its first moment on.
    let run = home.output(&[
        "run",
        "--rm",
        "--init=false",
        "--timeout",
        "0.2",
        "--stop-timeout",
        "0",
        "box",
        "sleep",
        "100000",
    ]);
    assert_eq!(run.code(), 137);
    let run = home.output(&[
        "run",
        "--rm",
        "--timeout",
        "1h",
        "box",
        "sh",
        "-c",
        "exit 3",
    ]);
    assert_eq!(run.code(), 3);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_detached_commands_output_is_kept() {
    let home = Home::new();
    // Two streams have no common order: what is kept of the second lets the first go on.
    let script = "echo one; echo two >&2; while [ ! -e go ]; do sleep 0.05; done; \
                  printf 'thr'; echo ee; [ -e on ] || { touch on; exit 4; }; \
                  while [ ! -e off ]; do sleep 0.05; done";
    let run = [
        "run", "-d", "--name", "it", "--upper", "disk:64m", "box", "sh", "-c", script,
    ];
    home.output(&run).ok();
    wait_until("two is kept", || {
        home.output(&["logs", "it"]).stderr() == "two\n"
    });
    home.output(&["exec", "it", "touch", "go"]).ok();
    let ended = || home.output(&["ps", "-q"]).ok().is_empty();
    wait_until("it ends", ended);
    let logs = |arguments: &[&str]| home.output(&[&["logs"], arguments, &["it"]].concat());
    let all = logs(&[]);
    assert_eq!(
        (all.code(), &*all.stdout(), &*all.stderr()),
        (0, "one\nthree\n", "two\n")
    );
    let tail = logs(&["-n", "1"]);
    assert_eq!(tail.stdout() + &tail.stderr(), "three\n");
    assert_eq!(logs(&["--tail", "0"]).stdout(), "");
    let stamped = logs(&["-t"]).stdout();
    let lines: Vec<_> = stamped
        .lines()
        .map(|line| line.split_once("Z ").unwrap())
        .collect();
    assert_eq!((lines[0].1, lines[1].1), ("one", "three"));
    assert!(
        lines[0].0.starts_with("20") && lines[0].0.len() == 29,
        "{stamped}"
    );

    // The next start appends, and `logs -f` follows until the end.
    home.output(&["start", "it"]).ok();
    let mut following = home.start(&["logs", "-f", "it"]);
    for line in ["one", "three", "one", "three"] {
        assert_eq!(following.line(), line);
    }
    home.output(&["stop", "-t", "0", "it"]).ok();
    assert_eq!(following.line(), "");
    assert_eq!(following.wait(), 0);
    home.output(&["run", "--name", "seen", "box", "true"]).ok();
    let none = home.output(&["logs", "seen"]);
    assert_eq!(none.code(), 1);
    assert!(none.stderr().contains("run -d"), "{}", none.stderr());
    home.output(&["rm", "it", "seen"]).ok();
    home.assert_nothing_left();
}
