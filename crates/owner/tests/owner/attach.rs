//! Clients that attach to the first command, those that leave theirs, and requests about it.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use micabox_owner::Client;
use micabox_owner::protocol::{
    Attach, ConfinementChange, Exec, Kind, Place, Reply, Request, Stream,
};
use micabox_testing::wait_until;
use micabox_wire::{Confinement, ExitStatus, MAX_DATA, ToGuest, ToHost};

use crate::support::{Fixture, confinement, detached, framed, output, reply, start};

/// The window of a command that requests none.
const WINDOW: usize = 256 << 10;

const PIPE: i32 = 13;
const TERM: i32 = 15;

/// Attaches a client with pipes. Returns the client, our end of its stdin, and that of its stdout.
fn attach(fixture: &Fixture) -> (Client, std::io::PipeWriter, std::io::PipeReader) {
    let mut client = fixture.connect();
    let (stdin, typed) = std::io::pipe().unwrap();
    let (shown, stdout) = std::io::pipe().unwrap();
    let request = Request::Attach(Attach {
        stdin: Place::Descriptor,
        stdout: Place::Descriptor,
        ..Attach::default()
    });
    let descriptors = [stdin.as_fd(), stdout.as_fd()];
    client.request(1, &request, &descriptors).unwrap();
    let answer = reply(&mut client, 1);
    let expected = attached(true, 0);
    assert_eq!(answer, expected);
    (client, typed, shown)
}

fn attached(stdin: bool, window: u32) -> Reply {
    Reply::Attached {
        pid: 7,
        tty: false,
        stdin,
        window,
    }
}

/// Attaches to the command with the process ID that all of the fixture's have, in frames.
fn attach_framed(client: &mut Client, window: u32) -> Reply {
    let attach = Attach {
        pid: Some(7),
        stdin: Place::Frames,
        stdout: Place::Frames,
        stderr: Place::Frames,
        window,
    };
    client.request(1, &Request::Attach(attach), &[]).unwrap();
    reply(client, 1)
}

#[track_caller]
fn refused(client: &mut Client) -> (Kind, String) {
    match reply(client, 1) {
        Reply::Failed(failure) => (failure.kind, failure.message),
        other => panic!("{other:?}"),
    }
}

fn stdin(id: u32, data: &[u8]) -> ToGuest {
    ToGuest::Stdin {
        id,
        data: data.to_vec(),
    }
}

fn read(from: &mut impl Read, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn attached_clients_see_the_output_and_one_of_them_types() {
    let mut fixture = Fixture::booted();
    let id = detached(&mut fixture, 100);
    fixture.guest.output(id, b"before");
    let (first, mut typed, mut shown) = attach(&fixture);
    fixture.guest.output(id, b"to one");
    assert_eq!(read(&mut shown, 6), b"to one");
    typed.write_all(b"input").unwrap();
    assert_eq!(fixture.guest.receive(), stdin(id, b"input"));

    // Another one sees it as well, but can't type at the same time.
    let mut second = fixture.connect();
    let (ours, theirs) = std::io::pipe().unwrap();
    let request = |stdin| {
        Request::Attach(Attach {
            stdin,
            ..Attach::default()
        })
    };
    let typing = request(Place::Descriptor);
    second.request(1, &typing, &[ours.as_fd()]).unwrap();
    let (kind, why) = refused(&mut second);
    assert_eq!(kind, Kind::Invalid);
    assert!(why.contains("another client"), "{why}");
    second.request(1, &request(Place::Null), &[]).unwrap();
    assert!(matches!(reply(&mut second, 1), Reply::Attached { .. }));
    second
        .request(1, &Request::Signal { signal: TERM }, &[])
        .unwrap();
    assert_eq!(
        fixture.guest.receive(),
        ToGuest::Signal { id, signal: TERM }
    );
    drop(theirs);

    // The end of a client's input is not the end of the command's.
    drop(typed);
    first.request(1, &Request::Release, &[]).unwrap();
    let mut rest = Vec::new();
    shown.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    fixture.guest.output(id, b"not to it");
    let (_third, mut typed, mut shown) = attach(&fixture);
    typed.write_all(b"more").unwrap();
    assert_eq!(fixture.guest.receive(), stdin(id, b"more"));
    fixture.guest.output(id, b"again");
    assert_eq!(read(&mut shown, 5), b"again");

    let status = ExitStatus::Exited(3);
    fixture.guest.send(ToHost::Exited { id, status });
    let exited = |reply| matches!(reply, Reply::Exited { status, .. } if status.code() == 3);
    assert!(exited(reply(&mut second, 1)));
    let record = fixture.record_at_end();
    let logged: String = record
        .iter()
        .filter_map(|line| line.strip_prefix("Stdout: "))
        .collect();
    assert_eq!(logged, "beforeto onenot to itagain");
}

#[test]
fn a_command_goes_on_without_its_client_and_another_one_attaches_in_frames() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let exec = Exec {
        detach: true,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 100);

    // While its client is there, another one sees the output, and has no stdin.
    let mut second = fixture.connect();
    assert_eq!(attach_framed(&mut second, 4), attached(false, 0));
    fixture.guest.output(id, b"to both");
    assert_eq!(output(&mut client), b"to both");
    assert_eq!(output(&mut second), b"to b");
    second.stdin(1, b"not taken").unwrap();
    let credit = |bytes| Request::Credit {
        stream: Stream::Stdout,
        bytes,
    };
    second.request(1, &credit(10), &[]).unwrap();
    assert_eq!(output(&mut second), b"oth");
    drop(second);
    drop(client);

    // What it writes while no client is attached is dropped.
    let mut third = fixture.connect();
    let answer = loop {
        match attach_framed(&mut third, 0) {
            // The owner has not seen the other one's end yet.
            Reply::Attached { stdin: false, .. } => third = fixture.connect(),
            answer => break answer,
        }
    };
    assert_eq!(answer, attached(true, 100));
    third.stdin(1, b"typed").unwrap();
    assert_eq!(fixture.guest.receive(), stdin(id, b"typed"));
    fixture.guest.send(ToHost::StdinCredit { id, bytes: 5 });
    assert_eq!(reply(&mut third, 1), Reply::Credit { bytes: 5 });
    third
        .request(1, &Request::Signal { signal: TERM }, &[])
        .unwrap();
    let sent = ToGuest::SignalGroup { id, signal: TERM };
    assert_eq!(fixture.guest.receive(), sent);
    third.end_stdin(1).unwrap();
    assert_eq!(fixture.guest.receive(), ToGuest::CloseStdin { id });
    fixture.guest.output(id, b"last");
    assert_eq!(output(&mut third), b"last");
    let status = ExitStatus::Exited(3);
    fixture.guest.send(ToHost::Exited { id, status });
    let answer = reply(&mut third, 1);
    assert!(matches!(answer, Reply::Exited { status, .. } if status.code() == 3));

    let mut late = fixture.connect();
    let attach = Request::Attach(Attach {
        pid: Some(7),
        ..Attach::default()
    });
    late.request(1, &attach, &[]).unwrap();
    assert_eq!(refused(&mut late).0, Kind::NotFound);
}

#[test]
fn an_attached_clients_descriptor_ends_the_stdin_if_the_client_says_so() {
    let mut fixture = Fixture::booted();
    let id = detached(&mut fixture, 100);
    let (first, mut typed, _shown) = attach(&fixture);
    typed.write_all(b"input").unwrap();
    first.end_stdin(1).unwrap();
    assert_eq!(fixture.guest.receive(), stdin(id, b"input"));
    // The client need not wait for that.
    first.request(1, &Request::Release, &[]).unwrap();
    typed.write_all(b"more").unwrap();
    assert_eq!(fixture.guest.receive(), stdin(id, b"more"));
    drop(typed);
    assert_eq!(fixture.guest.receive(), ToGuest::CloseStdin { id });
}

#[test]
fn an_attached_client_ends_the_stdin_after_its_descriptor_has_ended() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let exec = Exec {
        stdin: Place::Idle,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 100);
    let attach = |client: &mut Client| {
        let request = Request::Attach(Attach {
            pid: Some(7),
            stdin: Place::Descriptor,
            ..Attach::default()
        });
        let (theirs, ours) = std::io::pipe().unwrap();
        client.request(1, &request, &[theirs.as_fd()]).unwrap();
        (reply(client, 1), ours)
    };
    let mut first = fixture.connect();
    let (answer, typed) = attach(&mut first);
    assert_eq!(answer, attached(true, 0));
    drop(typed);
    // Until the owner has seen the descriptor's end, another client is refused.
    let mut second = fixture.connect();
    while matches!(attach(&mut second).0, Reply::Failed(_)) {}
    second.request(1, &Request::Release, &[]).unwrap();
    second.request(2, &Request::Info, &[]).unwrap();
    reply(&mut second, 2);
    first.end_stdin(1).unwrap();
    assert_eq!(fixture.guest.receive(), ToGuest::CloseStdin { id });
}

#[test]
fn commands_with_a_note_are_listed_to_other_clients() {
    let mut fixture = Fixture::booted();
    let (mut first, mut second) = (fixture.connect(), fixture.connect());
    let exec = Exec {
        note: "of the first".to_owned(),
        detach: true,
        ..framed()
    };
    let long = Exec {
        note: "x".repeat((64 << 10) + 1),
        ..framed()
    };
    first
        .request(1, &Request::Exec(Box::new(long)), &[])
        .unwrap();
    assert_eq!(refused(&mut first).0, Kind::Invalid);
    let id = start(&mut first, &mut fixture.guest, exec, 0);
    start(&mut second, &mut fixture.guest, framed(), 0);
    drop(first);
    let listed = |fixture: &Fixture| {
        let mut client = fixture.connect();
        client.request(3, &Request::Commands, &[]).unwrap();
        let mut notes = Vec::new();
        loop {
            match reply(&mut client, 3) {
                Reply::Command { pid, tty, note } => notes.push((pid, tty, note)),
                Reply::Listed => return notes,
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(listed(&fixture), [(7, false, "of the first".to_owned())]);
    let status = ExitStatus::Exited(0);
    fixture.guest.send(ToHost::Exited { id, status });
    wait_until("its end is seen", || listed(&fixture).is_empty());
}

#[test]
fn a_client_that_is_attached_in_frames_and_does_not_read_holds_only_its_command_back() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let exec = Exec {
        stdout: Place::Null,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 0);
    let mut slow = fixture.connect();
    attach_framed(&mut slow, 1000);
    for _ in 0..WINDOW / MAX_DATA {
        fixture.guest.output(id, &[b'x'; MAX_DATA]);
    }
    let mut other = fixture.connect();
    let second = start(&mut other, &mut fixture.guest, framed(), 0);
    fixture.guest.output(second, b"y");
    assert_eq!(output(&mut other), b"y");
    // The end of its connection is the end of its copy, and of nothing else.
    drop(slow);
    let credit = fixture.guest.receive();
    assert!(
        matches!(credit, ToGuest::Credit { id: of, bytes, .. } if of == id && bytes as usize == WINDOW),
        "{credit:?}"
    );
    fixture.guest.output(id, b"more");
    // One that grants more than a window can hold is disconnected.
    let mut greedy = fixture.connect();
    attach_framed(&mut greedy, 1000);
    let credit = Request::Credit {
        stream: Stream::Stdout,
        bytes: u32::MAX,
    };
    greedy.request(1, &credit, &[]).unwrap();
    greedy.reply(1, None).unwrap_err();
}

#[test]
fn commands_have_the_sandboxs_confinement_unless_a_client_names_another() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let mut of = |exec: Exec| {
        let request = Request::Exec(Box::new(exec));
        client.request(1, &request, &[]).unwrap();
        let ToGuest::Exec { id, spec } = fixture.guest.receive() else {
            panic!("no command");
        };
        fixture.guest.send(ToHost::Started {
            id,
            pid: 7,
            stdin_window: 0,
        });
        reply(&mut client, 1);
        let status = ExitStatus::Exited(0);
        fixture.guest.send(ToHost::Exited { id, status });
        reply(&mut client, 1);
        spec.confinement
    };
    assert_eq!(of(framed()), confinement());
    // `null` and `{}` say nothing, too.
    for nothing in ["{}", r#"{"capabilities": null, "ulimits": null}"#] {
        let exec = Exec {
            confinement: serde_json::from_str(nothing).unwrap(),
            ..framed()
        };
        assert_eq!(of(exec), confinement(), "{nothing}");
    }
    let change = ConfinementChange {
        capabilities: Some(u64::MAX),
        ..ConfinementChange::default()
    };
    let more = Confinement {
        capabilities: Some(u64::MAX),
        ..confinement()
    };
    let exec = Exec {
        confinement: change,
        ..framed()
    };
    assert_eq!(of(exec), more);
    // An operation on files is none of the sandbox's programs.
    let exec = Exec {
        argv: vec!["\0files".into()],
        ..framed()
    };
    assert_eq!(of(exec), Confinement::default());
}

#[test]
fn a_copy_that_is_not_read_stops_only_its_command() {
    let mut fixture = Fixture::booted();
    let id = detached(&mut fixture, 0);
    let (_client, _typed, mut shown) = attach(&fixture);
    for _ in 0..WINDOW / MAX_DATA {
        fixture.guest.output(id, &[b'x'; MAX_DATA]);
    }
    // Another command is served: had there been credit for the first one, it would come before.
    let mut other = fixture.connect();
    let second = start(&mut other, &mut fixture.guest, framed(), 0);
    fixture.guest.output(second, b"y");
    assert_eq!(output(&mut other), b"y");
    assert_eq!(read(&mut shown, WINDOW), vec![b'x'; WINDOW]);
    let credit = fixture.guest.receive();
    assert!(
        matches!(credit, ToGuest::Credit { id: of, bytes, .. } if of == id && bytes as usize == WINDOW)
    );

    // A reader that goes away is told, and stops nothing.
    drop(shown);
    fixture.guest.output(id, b"unseen");
    let mut last = fixture.connect();
    let third = start(&mut last, &mut fixture.guest, framed(), 0);
    fixture.guest.output(third, b"z");
    assert_eq!(output(&mut last), b"z");
}

#[test]
fn a_command_that_its_client_leaves_continues_with_an_open_stdin() {
    let mut fixture = Fixture::booted();
    for lifetime in [false, true] {
        let mut client = fixture.connect();
        let exec = Exec {
            lifetime,
            ..framed()
        };
        let id = start(&mut client, &mut fixture.guest, exec, 100);
        fixture.guest.output(id, b"seen");
        assert_eq!(output(&mut client), b"seen");
        client.request(1, &Request::Leave, &[]).unwrap();
        client
            .request(1, &Request::Signal { signal: 9 }, &[])
            .unwrap();
        client.request(2, &Request::Info, &[]).unwrap();
        assert!(matches!(reply(&mut client, 2), Reply::Info(_)));
        drop(client);
        fixture.guest.output(id, b"afterwards");
        // Neither the end of stdin nor a signal.
        let mut other = fixture.connect();
        let second = start(&mut other, &mut fixture.guest, framed(), 0);
        let status = ExitStatus::Exited(0);
        for id in [second, id] {
            fixture.guest.send(ToHost::Exited { id, status });
        }
    }
    let record = fixture.record_at_end();
    let logged = record.iter().filter(|line| line.starts_with("Stdout"));
    assert_eq!(logged.collect::<Vec<_>>(), ["Stdout: afterwards"]);
}

#[test]
fn any_client_signals_the_first_command_and_waits_for_the_exit_code() {
    let mut fixture = Fixture::booted();
    let signal = Request::SignalFirst { signal: TERM };
    let mut client = fixture.connect();
    client.request(1, &signal, &[]).unwrap();
    assert_eq!(refused(&mut client).0, Kind::Invalid);
    let id = detached(&mut fixture, 0);
    let wrong = Request::SignalFirst { signal: 65 };
    client.request(1, &wrong, &[]).unwrap();
    assert_eq!(refused(&mut client).0, Kind::Invalid);
    client.request(1, &signal, &[]).unwrap();
    assert_eq!(reply(&mut client, 1), Reply::Signaled);
    assert_eq!(
        fixture.guest.receive(),
        ToGuest::Signal { id, signal: TERM }
    );
    client.request(2, &Request::Wait, &[]).unwrap();
    let status = ExitStatus::Signaled(TERM);
    fixture.guest.send(ToHost::Exited { id, status });
    let ended = Reply::Ended {
        code: Some(143),
        failure: None,
    };
    assert_eq!(reply(&mut client, 2), ended);
}

#[test]
fn a_command_whose_reader_is_gone_gets_sigpipe_when_it_writes() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let (reader, writer) = std::io::pipe().unwrap();
    let exec = Exec {
        stdout: Place::Descriptor,
        sigpipe: true,
        ..framed()
    };
    let request = Request::Exec(Box::new(exec));
    client.request(1, &request, &[writer.as_fd()]).unwrap();
    drop(writer);
    let id = fixture.guest.start(0);
    assert!(matches!(reply(&mut client, 1), Reply::Started { .. }));
    drop(reader);
    // Another command passes by: nothing has happened so far.
    let mut other = fixture.connect();
    start(&mut other, &mut fixture.guest, framed(), 0);
    fixture.guest.output(id, b"x");
    assert_eq!(
        fixture.guest.receive(),
        ToGuest::SignalGroup { id, signal: PIPE }
    );
    let status = ExitStatus::Signaled(PIPE);
    fixture.guest.send(ToHost::Exited { id, status });
    assert!(matches!(reply(&mut client, 1), Reply::Exited { .. }));
}

#[test]
fn a_command_that_its_time_limit_ends_says_so() {
    let mut fixture = Fixture::booted();
    for (grace, expected) in [(60_000, true), (1, false)] {
        let mut client = fixture.connect();
        let exec = Exec {
            timeout: 1,
            grace,
            ..framed()
        };
        let id = start(&mut client, &mut fixture.guest, exec, 0);
        assert_eq!(
            fixture.guest.receive(),
            ToGuest::SignalGroup { id, signal: TERM }
        );
        if !expected {
            let killed = ToGuest::SignalGroup { id, signal: 9 };
            assert_eq!(fixture.guest.receive(), killed);
        }
        let status = ExitStatus::Exited(0);
        fixture.guest.send(ToHost::Exited { id, status });
        match reply(&mut client, 1) {
            Reply::Exited { timed_out, .. } => assert_eq!(timed_out, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn another_user_is_refused() {
    let fixture = Fixture::booted();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // As if the directory and its socket were open to all.
    let socket = fixture.directory.path().join("control");
    for path in [fixture.directory.path(), &socket] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let script = "import socket, sys\n\
        connection = socket.socket(socket.AF_UNIX)\n\
        connection.connect(sys.argv[1])\n\
        try: print(len(connection.recv(12)))\n\
        except ConnectionResetError: print(0)";
    let received = |uid| {
        let mut python = Command::new("python3");
        let python = python.args(["-c", script]).arg(&socket).uid(uid);
        let output = python.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(received(0), "12\n");
    assert_eq!(received(65_534), "0\n");
}
