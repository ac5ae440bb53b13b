//! What a command finds when it starts, and the messages when it can't.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use micabox_wire::{Exec, ExitStatus, StartFailure, ToHost};

use crate::host::{Host, command, shell};

/// Makes a script. Another process writes it: a file that a process has open for writing can't be
/// executed ("text file busy"), and a child that another test was just starting would have our file
/// open.
fn script(path: &Path, contents: &[u8], mode: u32) -> Exec {
    let mut install = Command::new("install")
        .args(["-m", &format!("{mode:o}"), "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = install.stdin.take().unwrap();
    stdin.write_all(contents).unwrap();
    drop(stdin);
    assert!(install.wait().unwrap().success());
    command(&[path.to_str().unwrap()])
}

#[test]
fn failures_have_dockers_exit_codes() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let mut foreign = fs::read("/proc/self/exe").unwrap();
    foreign.truncate(8192);
    foreign[18] = 0xf3;
    let mut cut = foreign.clone();
    cut[18] = if cfg!(target_arch = "x86_64") {
        62
    } else {
        183
    };
    cut.truncate(100);
    let mut host = Host::new();
    for (spec, reason, code, words) in [
        (
            command(&["no-such-program"]),
            StartFailure::NotFound,
            127,
            "no-such-program: executable file not found in PATH",
        ),
        (
            command(&["/proc/none/program"]),
            StartFailure::NotFound,
            127,
            "/proc/none/program: no such file or directory",
        ),
        (
            command(&["/etc/passwd"]),
            StartFailure::NotExecutable,
            126,
            "/etc/passwd: permission denied",
        ),
        (
            command(&["/etc"]),
            StartFailure::NotExecutable,
            126,
            "/etc: is a directory",
        ),
        (
            script(&at("bad"), b"#!/proc/none/shell\n", 0o755),
            StartFailure::NotFound,
            127,
            "interpreter /proc/none/shell not found",
        ),
        (
            script(&at("dos"), b"#!/bin/sh\r\necho\r\n", 0o755),
            StartFailure::NotFound,
            127,
            "Windows line endings",
        ),
        (
            script(&at("text"), b"echo hello\n", 0o755),
            StartFailure::NotExecutable,
            126,
            "exec format error (neither a program nor #!)",
        ),
        (
            script(&at("foreign"), &foreign, 0o755),
            StartFailure::NotExecutable,
            126,
            "exec format error (built for RISC-V)",
        ),
        (
            script(&at("cut"), &cut, 0o755),
            StartFailure::NotExecutable,
            126,
            "exec format error",
        ),
        (
            command(&[]),
            StartFailure::NotFound,
            127,
            "executable file not found",
        ),
        (
            command(&[""]),
            StartFailure::NotFound,
            127,
            "executable file not found",
        ),
        (
            command(&["/bin/echo", "a\0b"]),
            StartFailure::Other,
            125,
            "NUL",
        ),
        (
            Exec {
                user: "no such user".to_owned(),
                ..command(&["true"])
            },
            StartFailure::NoSuchUser,
            125,
            "not in the image's /etc/passwd",
        ),
        (
            Exec {
                cwd: b"relative".to_vec(),
                ..command(&["true"])
            },
            StartFailure::BadWorkdir,
            125,
            "not an absolute path",
        ),
        (
            Exec {
                cwd: b"/etc/passwd/below".to_vec(),
                ..command(&["true"])
            },
            StartFailure::BadWorkdir,
            125,
            "working directory /etc/passwd/below: not a directory",
        ),
        (
            Exec {
                argv: vec![b"true".to_vec(), vec![b'x'; 200_000]],
                ..command(&[])
            },
            StartFailure::Other,
            125,
            "argument list too long",
        ),
    ] {
        let run = host.run(spec);
        let failure = run.failure();
        assert_eq!(failure.reason, reason, "{failure:?}");
        assert_eq!(failure.exit_code(), code, "{failure:?}");
        assert!(failure.message.contains(words), "{failure:?}");
    }
}

#[test]
fn the_environment_is_the_hosts_and_dockers() {
    let mut host = Host::new();
    let mut spec = command(&["env"]);
    spec.env = vec![
        (b"A".to_vec(), b"b=c".to_vec()),
        (b"HOME".to_vec(), b"/h".to_vec()),
    ];
    let run = host.run(spec);
    assert_eq!(
        run.text(),
        "A=b=c\nHOME=/h\n\
         PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
         HOSTNAME=localhost\n"
    );
    let mut spec = command(&["/usr/bin/env"]);
    spec.env = vec![(b"PATH".to_vec(), b"/only".to_vec())];
    assert!(host.run(spec).text().contains("PATH=/only\n"));
    let mut spec = command(&["env"]);
    spec.env = vec![(b"PATH".to_vec(), b"/only".to_vec())];
    assert_eq!(host.run(spec).failure().reason, StartFailure::NotFound);
}

#[test]
fn a_working_directory_that_is_missing_is_made_if_wanted_and_refused_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/for/this");
    let mut spec = shell("pwd; stat -c %a .");
    spec.cwd = format!("{}/./x/..", path.display()).into_bytes();
    let run = Host::new().run(spec.clone());
    let failure = run.failure();
    assert_eq!(failure.reason, StartFailure::BadWorkdir);
    assert!(failure.message.contains("no such file"), "{failure:?}");
    assert!(!directory.path().join("made").exists());
    spec.make_cwd = true;
    let run = Host::new().run(spec);
    assert_eq!(run.text(), format!("{}\n755\n", path.display()));
    let run = Host::new().run(command(&["pwd"]));
    assert_eq!(run.text(), "/\n");
}

#[test]
fn a_relative_program_is_relative_to_the_working_directory() {
    let directory = tempfile::tempdir().unwrap();
    script(
        &directory.path().join("here"),
        b"#!/bin/sh\necho \"$0\"\n",
        0o755,
    );
    let mut spec = command(&["./here"]);
    spec.cwd = directory.path().as_os_str().as_encoded_bytes().to_vec();
    assert_eq!(Host::new().run(spec).text(), "./here\n");
}

#[test]
fn a_command_inherits_nothing_of_the_agents() {
    let mut host = Host::new();
    // Another command's pipes must not leak into it.
    let mut idle = command(&["sleep", "1000"]);
    idle.stdin = true;
    host.exec(9, idle);
    host.started(9);
    let run = host.run(shell("ls /proc/$$/fd"));
    assert_eq!(run.text(), "0\n1\n2\n");
    // With builtins only: while a shell starts a program, it may block signals itself.
    let run = host.run(shell(
        "while read name value; do case $name in SigBlk:|SigIgn:) echo $name $value;; esac; done \
         < /proc/self/status",
    ));
    assert_eq!(
        run.text(),
        "SigBlk: 0000000000000000\nSigIgn: 0000000000000000\n"
    );
    // It leads its own session and process group.
    let run = host.run(shell("ps -o sid=,pgid= -p $$; echo $$"));
    let ids: Vec<_> = run.text().split_whitespace().collect();
    assert_eq!(ids, vec![run.pid.to_string(); 3]);
}

#[test]
fn an_id_is_free_again_after_the_end() {
    let mut host = Host::new();
    let mut spec = shell("read line; exit 3");
    spec.stdin = true;
    host.exec(5, spec);
    host.started(5);
    host.exec(5, command(&["true"]));
    match host.receive() {
        ToHost::StartFailed { id: 5, failure } => {
            assert_eq!(failure.message, "command 5 is still running");
        }
        other => panic!("{other:?}"),
    }
    host.send(micabox_wire::ToGuest::CloseStdin { id: 5 });
    let status = ExitStatus::Exited(3);
    assert_eq!(host.receive(), ToHost::Exited { id: 5, status });
    host.exec(5, command(&["true"]));
    assert!(host.follow(&[5], 64 * 1024, None)[&5].status.is_some());
}

#[test]
#[ignore = "needs root"]
fn users_are_switched_for_good() {
    let mut host = Host::new();
    let mut spec = shell("id -u; id -g; id -G; echo $HOME; grep ^Cap /proc/self/status");
    spec.user = "1234:5678".to_owned();
    let run = host.run(spec);
    let mut lines = run.text().lines();
    for wanted in ["1234", "5678", "5678", "/"] {
        assert_eq!(lines.next(), Some(wanted));
    }
    for line in lines.filter(|line| !line.starts_with("CapBnd")) {
        assert!(line.ends_with("\t0000000000000000"), "{line}");
    }
}

#[test]
#[ignore = "needs root"]
fn an_ordinary_user_can_reopen_their_streams() {
    let mut spec = shell("echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin");
    spec.user = "1234".to_owned();
    let run = Host::new().run_with(spec, b"in\n");
    assert_eq!(run.text(), "out\nin\n");
    assert_eq!(run.stderr, b"err\n");
}

#[test]
#[ignore = "needs root"]
fn programs_that_a_user_may_not_execute_are_skipped_in_path() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    script(
        &directory.path().join("ls"),
        b"#!/bin/sh\necho mine\n",
        0o700,
    );
    let mut spec = command(&["ls", "-d", "/"]);
    spec.env = vec![(
        b"PATH".to_vec(),
        format!("{}:/bin", directory.path().display()).into_bytes(),
    )];
    let mut host = Host::new();
    assert_eq!(host.run(spec.clone()).text(), "mine\n");
    spec.user = "1234".to_owned();
    assert_eq!(host.run(spec).text(), "/\n");
}

#[test]
fn another_program_takes_the_place_of_one_that_is_not_found() {
    let mut host = Host::new();
    let or = |argv: &[&str], fallback: &str| Exec {
        fallback: fallback.into(),
        ..command(argv)
    };
    let own_name = &["no-such-program", "-c", "echo $0 $1", "name", "word"];
    assert_eq!(host.run(or(own_name, "sh")).text(), "name word\n");
    assert_eq!(host.run(or(&["echo", "it"], "sh")).text(), "it\n");
    // The failure is that of the program that was asked for.
    let none = host.run(or(&["no-such-program"], "nor-this-one"));
    assert!(none.failure().message.starts_with("no-such-program:"));
    let refused = host.run(or(&["/etc/passwd"], "sh"));
    assert_eq!(refused.failure().reason, StartFailure::NotExecutable);
}
