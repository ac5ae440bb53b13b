//! The exact output, input, signals and exit statuses of real processes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use micabox_guest::exec::Stop;
use micabox_testing::{exists, wait_until};
use micabox_wire::{ExitStatus, OutputStream, StartFailure, ToGuest, ToHost, encode};

use crate::host::{Host, command, shell};

#[test]
fn exit_codes_and_signals_are_exact() {
    let mut host = Host::new();
    for code in [0, 1, 2, 126, 127, 128, 137, 255] {
        let run = host.run(shell(&format!("exit {code}")));
        assert_eq!(run.status(), ExitStatus::Exited(code));
    }
    let run = host.run(shell("kill -9 $$"));
    assert_eq!(run.status(), ExitStatus::Signaled(9));
    assert_eq!(run.status().code(), 137);
    let run = host.run(shell("ulimit -c 0; kill -SEGV $$"));
    assert_eq!(run.status(), ExitStatus::Signaled(11));
    assert!(matches!(host.hang_up(), Stop::HostGone));
}

#[test]
fn stdout_and_stderr_stay_apart() {
    let run = Host::new().run(shell(
        "printf out; printf err >&2; printf put; printf or >&2",
    ));
    assert_eq!(run.stdout, b"output");
    assert_eq!(run.stderr, b"error");
}

#[test]
fn all_bytes_arrive_whatever_the_window() {
    let mut host = Host::new();
    for (window, lines) in [
        (1, 100),
        (2, 200),
        (7, 1000),
        (4096, 50_000),
        (1 << 20, 200_000),
    ] {
        let mut spec = shell(&format!("seq {lines}; seq {lines} >&2; exit 3"));
        spec.output_window = window;
        let run = host.run(spec);
        let wanted: String = (1..=lines).map(|line| format!("{line}\n")).collect();
        assert!(run.stdout == wanted.as_bytes(), "stdout, window {window}");
        assert!(run.stderr == wanted.as_bytes(), "stderr, window {window}");
        assert_eq!(run.status(), ExitStatus::Exited(3));
    }
}

#[test]
fn input_arrives_and_ends() {
    let mut host = Host::new();
    let input: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    for input in [&input[..0], &input[..1], &input[..]] {
        let mut spec = command(&["cat"]);
        spec.stdin = true;
        let run = host.run_with(spec, input);
        assert!(run.stdout == input, "{} bytes", input.len());
        assert_eq!(run.status(), ExitStatus::Exited(0));
        assert!(!run.stdin_closed);
    }
}

#[test]
fn a_connection_to_a_port_is_copied_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let input: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    let server = thread::spawn(move || {
        // One that hears all before it says something, and one that answers at once.
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        stream.write_all(&heard).unwrap();
        drop(stream);
        let (stream, _) = listener.accept().unwrap();
        std::io::copy(&mut &stream, &mut &stream).unwrap();
        drop(stream);
        // One that does not wait for the other side's end.
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"enough").unwrap();
    });
    let mut host = Host::new();
    let connect = || {
        let mut spec = command(&["\0connect", &port]);
        spec.stdin = true;
        spec
    };
    for _ in 0..2 {
        let run = host.run_with(connect(), &input);
        assert!(run.stdout == input, "{} bytes", run.stdout.len());
        assert_eq!(run.status(), ExitStatus::Exited(0));
    }
    host.exec(1, connect());
    let run = host.follow(&[1], 64 << 10, None).remove(&1).unwrap();
    assert_eq!(
        (run.text(), run.status()),
        ("enough", ExitStatus::Exited(0))
    );
    server.join().unwrap();
    for wrong in [&port, "65536", "x", ""] {
        let run = host.run(command(&["\0connect", wrong]));
        assert_eq!(run.failure().reason, StartFailure::Other);
    }
    let refused = host.run(command(&["\0connect", &port]));
    assert_eq!(
        refused.failure().message,
        format!("connect to port {port}: connection refused")
    );
}

#[test]
fn without_stdin_there_is_nothing_to_read() {
    let run = Host::new().run(shell("cat; readlink /proc/self/fd/0"));
    assert_eq!(run.stdout, b"/dev/null\n");
}

#[test]
fn input_that_is_not_read_does_no_harm() {
    let mut host = Host::new();
    let input = vec![b'x'; 1 << 20];
    // Exits without reading.
    let run = host.run_with(shell("exit 5"), &input);
    assert_eq!(run.status(), ExitStatus::Exited(5));
    // Closes stdin and continues; its output proves that.
    let run = host.run_with(shell("exec 0<&-; echo on"), &input);
    assert_eq!(run.stdout, b"on\n");
    // Reads a little.
    let run = host.run_with(command(&["head", "-c", "10"]), &input);
    assert_eq!(run.stdout, b"xxxxxxxxxx");
}

#[test]
fn a_closed_stdin_is_reported_to_the_host() {
    let mut host = Host::new();
    let mut spec = shell("exec 0<&-; exec sleep 1000");
    spec.stdin = true;
    host.exec(1, spec);
    host.started(1);
    loop {
        match host.receive() {
            ToHost::StdinClosed { id: 1 } => break,
            ToHost::Output { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    // Already sent when stdin closed: dropped.
    host.send(ToGuest::Stdin {
        id: 1,
        data: b"late".to_vec(),
    });
    host.send(ToGuest::CloseStdin { id: 1 });
    host.send(ToGuest::Signal { id: 1, signal: 15 });
    assert_eq!(
        host.receive(),
        ToHost::Exited {
            id: 1,
            status: ExitStatus::Signaled(15)
        }
    );
}

#[test]
fn a_reader_that_stops_blocks_only_its_command() {
    let mut host = Host::new();
    for id in 10..40 {
        let mut spec = command(&["yes"]);
        spec.output_window = 1000;
        host.exec(id, spec);
    }
    let mut got = 0;
    while got < 30 * 1000 {
        match host.receive() {
            ToHost::Started { .. } => {}
            ToHost::Output { data, .. } => got += data.len(),
            other => panic!("{other:?}"),
        }
    }
    // All thirty have used up their windows and send nothing more.
    let run = host.run(shell("echo through"));
    assert_eq!(run.stdout, b"through\n");
    host.send(ToGuest::Credit {
        id: 12,
        stream: OutputStream::Stdout,
        bytes: 4,
    });
    assert_eq!(
        host.receive(),
        ToHost::Output {
            id: 12,
            stream: OutputStream::Stdout,
            data: b"y\ny\n".to_vec()
        }
    );
    for id in 10..40 {
        host.send(ToGuest::Signal { id, signal: 9 });
    }
    // Their exit statuses come after the output that they had written, so there must be room.
    for id in 10..40 {
        let stream = OutputStream::Stdout;
        host.send(ToGuest::Credit {
            id,
            stream,
            bytes: 1 << 20,
        });
    }
    let mut ended = 0;
    while ended < 30 {
        match host.receive() {
            ToHost::Output { .. } => {}
            ToHost::Exited { status, .. } => {
                assert_eq!(status, ExitStatus::Signaled(9));
                ended += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_host_that_stops_reading_stops_commands_not_the_agent() {
    let mut host = Host::new();
    let mut spec = shell("yes | head -c 20000000");
    spec.output_window = u32::MAX;
    host.exec(1, spec);
    // Requests are still served while megabytes wait: this one ends the command.
    host.started(1);
    for id in 2..100 {
        host.exec(id, command(&["true"]));
    }
    host.send(ToGuest::Signal { id: 1, signal: 9 });
    let ids: Vec<u32> = (1..100).collect();
    let mut left = ids.len();
    while left > 0 {
        match host.receive() {
            ToHost::Exited { .. } => left -= 1,
            ToHost::Started { .. } | ToHost::Output { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn output_larger_than_the_agents_queue_arrives_after_the_end() {
    let mut host = Host::new();
    let ids: Vec<u32> = (1..=16).collect();
    for &id in &ids {
        // Fills a pipe and ends.
        let mut spec = command(&["head", "-c", "65536", "/dev/zero"]);
        spec.output_window = 1;
        host.exec(id, spec);
    }
    let mut pids = Vec::new();
    let mut got = 0;
    while got < ids.len() || pids.len() < ids.len() {
        match host.receive() {
            ToHost::Started { pid, .. } => pids.push(pid),
            ToHost::Output { data, .. } => got += data.len(),
            other => panic!("{other:?}"),
        }
    }
    // All have ended and have been waited for.
    for pid in pids {
        wait_until("it is waited for", || !exists(pid.to_string()));
    }
    let mut credit = Vec::new();
    for &id in &ids {
        let stream = OutputStream::Stdout;
        let bytes = 1 << 20;
        encode(&ToGuest::Credit { id, stream, bytes }, &mut credit).unwrap();
    }
    host.stream.write_all(&credit).unwrap();
    let mut ended = 0;
    while ended < ids.len() {
        match host.receive() {
            ToHost::Output { data, .. } => got += data.len(),
            ToHost::Exited { .. } => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, 16 * 65536);
}

#[test]
fn daemons_that_keep_stdout_open_are_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let [go, proof] = ["go", "proof"].map(|name| directory.path().join(name));
    let made = Command::new("mkfifo").args([&go, &proof]).status().unwrap();
    assert!(made.success());
    let mut host = Host::new();
    let script = format!(
        "(read line < {}; echo late; echo late; echo alive > {}) & echo early; exit 4",
        go.display(),
        proof.display()
    );
    let run = host.run(shell(&script));
    assert_eq!(run.stdout, b"early\n");
    assert_eq!(run.status(), ExitStatus::Exited(4));
    // The daemon can still write to its stdout and is not killed.
    fs::write(&go, "go\n").unwrap();
    assert_eq!(fs::read_to_string(&proof).unwrap(), "alive\n");
    assert_eq!(host.run(shell("echo next")).stdout, b"next\n");
}

#[test]
fn a_daemon_that_floods_stdout_does_not_delay_the_end() {
    let mut host = Host::new();
    let run = host.run(shell("yes & echo $! >&2; exit 6"));
    assert_eq!(run.status(), ExitStatus::Exited(6));
    let pid = String::from_utf8(run.stderr).unwrap();
    let run = host.run(command(&["kill", "-9", pid.trim()]));
    assert_eq!(run.status(), ExitStatus::Exited(0));
}

#[test]
fn signals_reach_only_their_process() {
    let mut host = Host::new();
    // A signal just before a read would be lost until the read ends; a sleep ends.
    let mut spec =
        shell("trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done");
    spec.stdin = true;
    host.exec(1, spec);
    host.started(1);
    host.output_with(1, "ready");
    for signal in [0, -1, 65, 1000, i32::MAX, i32::MIN] {
        host.send(ToGuest::Signal { id: 1, signal });
    }
    host.send(ToGuest::Signal { id: 1, signal: 10 });
    assert_eq!(host.output_with(1, "\n"), "caught\n");
    // The end of stdin's reader may be reported before the exit status.
    let status = ExitStatus::Exited(7);
    while host.receive() != (ToHost::Exited { id: 1, status }) {}
    for signal in [1, 2, 3, 9, 13, 15, 34, 64] {
        host.exec(1, command(&["sleep", "1000"]));
        host.started(1);
        host.send(ToGuest::Signal { id: 1, signal });
        let status = ExitStatus::Signaled(signal);
        assert_eq!(host.receive(), ToHost::Exited { id: 1, status });
    }
    // A child of the command does not receive the signal.
    host.exec(1, shell("sleep 1000 & echo $!; wait"));
    host.started(1);
    let pid = host.output_with(1, "\n");
    host.send(ToGuest::Signal { id: 1, signal: 15 });
    assert_eq!(
        host.receive(),
        ToHost::Exited {
            id: 1,
            status: ExitStatus::Signaled(15)
        }
    );
    let run = host.run(command(&["kill", "-9", pid.trim()]));
    assert_eq!(run.status(), ExitStatus::Exited(0));
}

#[test]
fn many_commands_run_at_once() {
    let mut host = Host::new();
    let ids: Vec<u32> = (0..100).collect();
    for &id in &ids {
        let mut spec = shell(&format!("seq 2000; echo {id} >&2; exit {id}"));
        spec.output_window = 512;
        host.exec(id, spec);
    }
    let wanted: String = (1..=2000).map(|line| format!("{line}\n")).collect();
    for (id, run) in host.follow(&ids, 512, None) {
        assert!(run.stdout == wanted.as_bytes(), "command {id}");
        assert_eq!(run.stderr, format!("{id}\n").into_bytes());
        assert_eq!(run.status(), ExitStatus::Exited(id as i32));
    }
}

#[test]
fn messages_for_commands_that_are_gone_are_ignored() {
    let mut host = Host::new();
    let id = 77;
    host.send(ToGuest::Stdin {
        id,
        data: vec![0; 100_000],
    });
    host.send(ToGuest::CloseStdin { id });
    host.send(ToGuest::Signal { id, signal: 9 });
    host.send(ToGuest::Credit {
        id,
        stream: OutputStream::Stderr,
        bytes: u32::MAX,
    });
    assert_eq!(host.run(shell("echo fine")).stdout, b"fine\n");
}

#[test]
fn a_host_that_breaks_the_protocol_is_not_served() {
    let mut host = Host::new();
    let mut spec = command(&["sleep", "1000"]);
    spec.stdin = true;
    host.exec(1, spec);
    host.started(1);
    host.send(ToGuest::Signal { id: 1, signal: 9 });
    let data = vec![0; 256 * 1024 + 1];
    host.send(ToGuest::Exec {
        id: 2,
        spec: Box::new({
            let mut spec = command(&["cat"]);
            spec.stdin = true;
            spec
        }),
    });
    host.send(ToGuest::Stdin { id: 2, data });
    let stop = host.stopped();
    assert!(
        matches!(&stop, Stop::Protocol(reason) if reason.contains("command 2")),
        "{stop:?}"
    );
}

#[test]
fn shutdown_stops_the_agents_server() {
    let mut host = Host::new();
    host.send(ToGuest::Shutdown);
    assert!(matches!(host.stopped(), Stop::Shutdown));
}
