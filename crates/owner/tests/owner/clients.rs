//! Clients of an owner: streams in frames and over descriptors, ends, and freezes.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use micabox_owner::protocol::frame::Pipe;
use micabox_owner::protocol::{Exec, Frame, Kind, Place, Reply, Request, Stream};
use micabox_testing::wait_until;
use micabox_vmm::Exit;
use micabox_wire::{ExitStatus, MAX_DATA, OutputStream, ToGuest, ToHost};

use crate::support::{Fixture, framed, output, read_all, reply, start};

/// The window of a command that requests none.
const WINDOW: u32 = 256 << 10;

fn exited(code: i32) -> Reply {
    Reply::Exited {
        status: ExitStatus::Exited(code),
        timed_out: false,
        unwritten: None,
        info: None,
    }
}

fn end(fixture: &mut Fixture, id: u32, code: i32) {
    let status = ExitStatus::Exited(code);
    fixture.guest.send(ToHost::Exited { id, status });
}

#[test]
fn output_and_exit_code_arrive_in_order() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let id = start(&mut client, &mut fixture.guest, framed(), 0);
    fixture.guest.output(id, b"out");
    fixture.guest.send(ToHost::Output {
        id,
        stream: OutputStream::Stderr,
        data: b"err".to_vec(),
    });
    end(&mut fixture, id, 9);
    assert_eq!(output(&mut client), b"out");
    let next = client.receive(None).unwrap();
    assert_eq!(next, Some(Frame::Data(1, Pipe::Stderr, b"err".to_vec())));
    assert_eq!(reply(&mut client, 1), exited(9));
    // The number is free again.
    start(&mut client, &mut fixture.guest, framed(), 0);
}

#[test]
fn a_clients_descriptor_is_closed_before_the_exit_is_reported() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let (reader, writer) = std::io::pipe().unwrap();
    let exec = Exec {
        stdout: Place::Descriptor,
        ..framed()
    };
    let request = Request::Exec(Box::new(exec));
    client.request(1, &request, &[writer.as_fd()]).unwrap();
    drop(writer);
    let id = fixture.guest.start(0);
    assert!(matches!(reply(&mut client, 1), Reply::Started { .. }));
    // More than the pipe holds: its slow reader must not stop anything else.
    let mut sent = 0;
    while sent < WINDOW as usize {
        fixture.guest.output(id, &[b'x'; MAX_DATA]);
        sent += MAX_DATA;
    }
    end(&mut fixture, id, 0);
    let mut other = fixture.connect();
    let second = start(&mut other, &mut fixture.guest, framed(), 0);
    fixture.guest.output(second, b"y");
    assert_eq!(output(&mut other), b"y");
    assert_eq!(read_all(reader).len(), sent);
    assert_eq!(reply(&mut client, 1), exited(0));
}

#[test]
fn a_reader_gives_credit_and_one_that_is_gone_does_too() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let id = start(&mut client, &mut fixture.guest, framed(), 0);
    for _ in 0..WINDOW as usize / MAX_DATA {
        fixture.guest.output(id, &[0; MAX_DATA]);
    }
    let mut received = 0;
    while received < WINDOW as usize {
        received += output(&mut client).len();
    }
    let credit = |bytes| ToGuest::Credit {
        id,
        stream: OutputStream::Stdout,
        bytes,
    };
    let half = Request::Credit {
        stream: Stream::Stdout,
        bytes: WINDOW / 2,
    };
    client.request(1, &half, &[]).unwrap();
    assert_eq!(fixture.guest.receive(), credit(WINDOW / 2));
    client.request(1, &Request::Release, &[]).unwrap();
    let mut received = [fixture.guest.receive(), fixture.guest.receive()];
    received.sort_by_key(|message| matches!(message, ToGuest::Credit { .. }));
    assert_eq!(received, [ToGuest::CloseStdin { id }, credit(WINDOW / 2)]);
}

#[test]
fn a_command_that_is_killed_ends_though_its_output_is_not_granted() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let id = start(&mut client, &mut fixture.guest, framed(), 0);
    fixture.guest.output(id, &[b'x'; MAX_DATA]);
    client
        .request(1, &Request::Signal { signal: 9 }, &[])
        .unwrap();
    let killed = ToGuest::SignalGroup { id, signal: 9 };
    assert_eq!(fixture.guest.receive(), killed);
    // What was granted is sent; the guest may send the rest, which is dropped.
    for _ in 1..WINDOW as usize / MAX_DATA {
        fixture.guest.output(id, &[b'x'; MAX_DATA]);
    }
    let credit = ToGuest::Credit {
        id,
        stream: OutputStream::Stdout,
        bytes: WINDOW,
    };
    assert_eq!(fixture.guest.receive(), credit);
    fixture.guest.output(id, b"rest");
    end(&mut fixture, id, 0);
    let mut received = 0;
    while received < WINDOW as usize {
        received += output(&mut client).len();
    }
    assert_eq!(reply(&mut client, 1), exited(0));
}

#[test]
fn the_guest_gets_the_program_that_takes_the_place_of_a_missing_one() {
    let mut fixture = Fixture::booted();
    let client = fixture.connect();
    let exec = Exec {
        fallback: "/bin/sh".into(),
        ..framed()
    };
    let request = Request::Exec(Box::new(exec));
    client.request(1, &request, &[]).unwrap();
    let ToGuest::Exec { spec, .. } = fixture.guest.receive() else {
        panic!("no command");
    };
    assert_eq!(spec.fallback, b"/bin/sh");
}

#[test]
fn output_that_outlives_a_kill_waits_for_credit_and_the_end_with_it() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let exec = Exec {
        output_outlives_kill: true,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 0);
    for _ in 0..WINDOW as usize / MAX_DATA {
        fixture.guest.output(id, &[b'x'; MAX_DATA]);
    }
    let mut received = 0;
    while received < WINDOW as usize {
        received += output(&mut client).len();
    }
    let kill = Request::Signal { signal: 9 };
    client.request(1, &kill, &[]).unwrap();
    let killed = ToGuest::SignalGroup { id, signal: 9 };
    // Nothing is granted in the client's name.
    assert_eq!(fixture.guest.receive(), killed);
    let read = Request::Credit {
        stream: Stream::Stdout,
        bytes: WINDOW,
    };
    client.request(1, &read, &[]).unwrap();
    let credit = ToGuest::Credit {
        id,
        stream: OutputStream::Stdout,
        bytes: WINDOW,
    };
    assert_eq!(fixture.guest.receive(), credit);
    fixture.guest.output(id, b"rest");
    end(&mut fixture, id, 0);
    assert_eq!(output(&mut client), b"rest");
    assert_eq!(reply(&mut client, 1), exited(0));
}

#[test]
fn stdin_in_frames_keeps_to_its_window() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let id = start(&mut client, &mut fixture.guest, framed(), 10);
    client.stdin(1, b"0123456789").unwrap();
    let stdin = |data: &[u8]| ToGuest::Stdin {
        id,
        data: data.to_vec(),
    };
    assert_eq!(fixture.guest.receive(), stdin(b"0123456789"));
    fixture.guest.send(ToHost::StdinCredit { id, bytes: 4 });
    assert_eq!(reply(&mut client, 1), Reply::Credit { bytes: 4 });
    client.stdin(1, b"more").unwrap();
    client.end_stdin(1).unwrap();
    assert_eq!(fixture.guest.receive(), stdin(b"more"));
    assert_eq!(fixture.guest.receive(), ToGuest::CloseStdin { id });

    // A client that sends more than was granted is disconnected.
    let mut greedy = fixture.connect();
    let id = start(&mut greedy, &mut fixture.guest, framed(), 3);
    greedy.stdin(1, b"four").unwrap();
    let killed = ToGuest::SignalGroup { id, signal: 9 };
    assert_eq!(fixture.guest.receive(), killed);
}

#[test]
fn stdin_from_a_descriptor_keeps_to_its_window_and_ends() {
    let mut fixture = Fixture::booted();
    let client = fixture.connect();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let exec = Exec {
        stdin: Place::Descriptor,
        ..framed()
    };
    let request = Request::Exec(Box::new(exec));
    client.request(1, &request, &[reader.as_fd()]).unwrap();
    drop(reader);
    let id = fixture.guest.start(10);
    writer.write_all(&[b'x'; 25]).unwrap();
    drop(writer);
    let mut received = 0;
    loop {
        match fixture.guest.receive() {
            ToGuest::Stdin { data, .. } => {
                assert!(data.len() <= 10);
                received += data.len();
                let bytes = data.len() as u32;
                fixture.guest.send(ToHost::StdinCredit { id, bytes });
            }
            ToGuest::CloseStdin { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, 25);
}

#[test]
fn closed_stdin_is_a_broken_pipe() {
    let mut fixture = Fixture::booted();
    let client = fixture.connect();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let exec = Exec {
        stdin: Place::Descriptor,
        ..framed()
    };
    let request = Request::Exec(Box::new(exec));
    client.request(1, &request, &[reader.as_fd()]).unwrap();
    drop(reader);
    let id = fixture.guest.start(4);
    fixture.guest.send(ToHost::StdinClosed { id });
    wait_until("a write is refused", || writer.write_all(b"x").is_err());
}

#[test]
fn a_sandbox_ends_with_the_command_that_has_its_lifetime() {
    let mut fixture = Fixture::booted_with(true);
    let mut client = fixture.connect();
    let exec = Exec {
        lifetime: true,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 0);
    end(&mut fixture, id, 5);
    assert_eq!(reply(&mut client, 1), exited(5));
    let Fixture {
        guest,
        mut creator,
        record,
        owner,
        ..
    } = fixture;
    guest.shut_down(None);
    let ended = Reply::Ended {
        code: Some(5),
        failure: None,
    };
    assert_eq!(reply(&mut creator, 0), ended);
    owner.join().unwrap().unwrap();
    let record = record.lock().unwrap().clone();
    assert_eq!(record, ["running", "ended Some(5) None false"]);
}

/// Processes that look at the sandbox afterwards see its end, and its creator may be gone.
#[test]
fn a_sandbox_that_holds_nothing_is_over_before_its_machine_is() {
    let mut fixture = Fixture::booted();
    fixture.guest.machine.lingers.store(true, Ordering::Release);
    let mut client = fixture.connect();
    let exec = Exec {
        lifetime: true,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 0);
    end(&mut fixture, id, 5);
    assert_eq!(reply(&mut client, 1), exited(5));
    let ended = Reply::Ended {
        code: Some(5),
        failure: None,
    };
    assert_eq!(fixture.reply(), ended);
    assert!(!fixture.guest.machine.is_gone() && !fixture.owner.is_finished());
    let recorded = ["running", "ended Some(5) None false"];
    assert_eq!(*fixture.record.lock().unwrap(), recorded);
    assert!(!fixture.directory.path().join("control").exists());
    fixture.creator.hang_up();
    fixture.guest.machine.end(Exit::PoweredOff);
    assert_eq!(fixture.record_at_end(), recorded);
}

#[test]
fn a_sandbox_whose_output_has_no_reader_ends_with_141() {
    let mut fixture = Fixture::booted();
    let client = fixture.connect();
    let (reader, writer) = std::io::pipe().unwrap();
    let exec = Exec {
        stdout: Place::Descriptor,
        lifetime: true,
        ..framed()
    };
    let request = Request::Exec(Box::new(exec));
    client.request(1, &request, &[writer.as_fd()]).unwrap();
    drop(writer);
    fixture.guest.start(0);
    drop(reader);
    let ended = Reply::Ended {
        code: Some(141),
        failure: None,
    };
    assert_eq!(fixture.reply(), ended);
}

#[test]
fn a_client_that_dies_ends_its_attached_commands() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let taken = start(&mut client, &mut fixture.guest, framed(), 0);
    drop(client);
    let killed = ToGuest::SignalGroup {
        id: taken,
        signal: 9,
    };
    assert_eq!(fixture.guest.receive(), killed);
    assert_eq!(fixture.guest.receive(), ToGuest::CloseStdin { id: taken });
    let mut client = fixture.connect();
    let exec = Exec {
        stdout: Place::Log,
        detach: true,
        ..framed()
    };
    let left = start(&mut client, &mut fixture.guest, exec, 0);
    drop(client);
    fixture.guest.output(left, b"still here");
    let client = fixture.connect();
    client.request(1, &Request::Kill, &[]).unwrap();
    let record = fixture.record_at_end();
    assert!(
        record.contains(&"Stdout: still here".to_owned()),
        "{record:?}"
    );
}

#[test]
fn a_sandbox_ends_with_its_creator_unless_it_is_detached() {
    let fixture = Fixture::booted();
    fixture.creator.hang_up();
    assert_eq!(fixture.record_at_end(), ["running", "ended None None true"]);

    let mut fixture = Fixture::booted();
    fixture.creator.request(3, &Request::Detach, &[]).unwrap();
    assert_eq!(reply(&mut fixture.creator, 3), Reply::Detached);
    fixture.creator.hang_up();
    let mut client = fixture.connect();
    start(&mut client, &mut fixture.guest, framed(), 0);
    client.request(2, &Request::Kill, &[]).unwrap();
    assert!(matches!(reply(&mut client, 2), Reply::Stopped { .. }));
    assert_eq!(
        fixture.record_at_end(),
        ["running", "detached", "ended None None false"]
    );
}

#[test]
fn a_request_is_carried_out_after_its_client_hangs_up() {
    for _ in 0..20 {
        let fixture = Fixture::booted();
        fixture.connect().request(1, &Request::Kill, &[]).unwrap();
        fixture.record_at_end();
    }
}

#[test]
fn a_command_past_its_time_limit_is_terminated() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let exec = Exec {
        lifetime: true,
        timeout: 50,
        grace: 60_000,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 0);
    assert_eq!(fixture.guest.receive(), ToGuest::Signal { id, signal: 15 });
    let status = ExitStatus::Signaled(15);
    fixture.guest.send(ToHost::Exited { id, status });
    let ended = Reply::Ended {
        code: Some(124),
        failure: None,
    };
    assert_eq!(fixture.reply(), ended);

    // The same for a command that is not the sandbox's lifetime.
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let exec = Exec {
        timeout: 50,
        grace: 50,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 0);
    for signal in [15, 9] {
        let sent = ToGuest::SignalGroup { id, signal };
        assert_eq!(fixture.guest.receive(), sent);
    }
    end(&mut fixture, id, 0);
    assert_eq!(reply(&mut client, 1), exited(0));
}

#[test]
fn a_freeze_lasts_while_its_client_renews_it() {
    let fixture = Fixture::booted();
    let mut freezing = fixture.connect();
    let freeze = Request::Freeze {
        memory: false,
        delta: false,
    };
    freezing.request(1, &freeze, &[]).unwrap();
    assert!(matches!(reply(&mut freezing, 1), Reply::Frozen { .. }));
    // A second freeze waits for the first, and a stop waits for neither.
    let mut waiting = fixture.connect();
    waiting.request(1, &freeze, &[]).unwrap();
    freezing.request(1, &Request::Hold, &[]).unwrap();
    freezing.request(1, &Request::Thaw, &[]).unwrap();
    assert_eq!(reply(&mut freezing, 1), Reply::Thawed);
    assert!(matches!(reply(&mut waiting, 1), Reply::Frozen { .. }));
    // As if the client's process were killed.
    drop(waiting);
    let mut silent = fixture.connect();
    silent.request(1, &freeze, &[]).unwrap();
    assert!(matches!(reply(&mut silent, 1), Reply::Frozen { .. }));
    let mut late = fixture.connect();
    late.request(1, &freeze, &[]).unwrap();
    let mut stopping = fixture.connect();
    stopping.request(1, &Request::Kill, &[]).unwrap();
    assert!(matches!(reply(&mut stopping, 1), Reply::Stopped { .. }));
    for client in [&mut silent, &mut late] {
        match reply(client, 1) {
            Reply::Failed(failure) => assert_eq!(failure.kind, Kind::Ending),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(*fixture.guest.machine.frozen.lock().unwrap(), 3);
}

#[test]
fn a_silent_client_does_not_keep_a_machine_frozen() {
    let fixture = Fixture::booted();
    let mut silent = fixture.connect();
    let begun = Instant::now();
    silent
        .request(
            1,
            &Request::Freeze {
                memory: false,
                delta: false,
            },
            &[],
        )
        .unwrap();
    assert!(matches!(reply(&mut silent, 1), Reply::Frozen { .. }));
    match reply(&mut silent, 1) {
        Reply::Failed(failure) => assert_eq!(failure.kind, Kind::NotFrozen),
        other => panic!("{other:?}"),
    }
    // Ten seconds, less what the clocks of a virtual machine's processors may differ by.
    assert!(begun.elapsed() >= Duration::from_secs(9));
}

#[test]
fn a_malformed_frame_ends_only_its_connection() {
    let mut fixture = Fixture::booted();
    let directory = std::fs::File::open(fixture.directory.path()).unwrap();
    let path = format!("/proc/self/fd/{}/control", directory.as_raw_fd());
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"MICAOWN\n\x09\0\0\0",
        b"MICAOWN\n\x02\0\0\0\xff\xff\xff\xff",
        b"MICAOWN\n\x02\0\0\0\x05\0\0\0\x09\0\0\0\0",
        b"MICAOWN\n\x02\0\0\0\x04\0\0\0\0\0\0\0",
    ] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(nonsense).unwrap();
        let mut answer = Vec::new();
        // With unread bytes the connection is reset.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer.len(), 12, "{nonsense:?}");
    }
    let mut client = fixture.connect();
    start(&mut client, &mut fixture.guest, framed(), 0);
}

#[test]
fn a_malformed_message_fails_alone() {
    let mut fixture = Fixture::booted();
    let directory = std::fs::File::open(fixture.directory.path()).unwrap();
    let path = format!("/proc/self/fd/{}/control", directory.as_raw_fd());
    let mut stream = UnixStream::connect(&path).unwrap();
    let mut preamble = [0; 12];
    stream.read_exact(&mut preamble).unwrap();
    let message = |number: u8, text: &str| {
        let length = u32::try_from(text.len() + 5).unwrap().to_le_bytes();
        [&length[..], &[0, number, 0, 0, 0], text.as_bytes()].concat()
    };
    let command = r#"{"type": "exec", "argv": ["true"]}"#;
    let sent = [
        preamble.to_vec(),
        message(1, command),
        // About the command: an answer would be the command's.
        message(1, r#"{"type": "resize", "rows": -1, "columns": 80}"#),
        message(2, "{}"),
        message(3, r#"{"type": "exec", "argv": [5]}"#),
        message(4, r#"{"type": "rename", "name": "\udcff"}"#),
        message(5, r#"{"type": "info"}"#),
    ];
    stream.write_all(&sent.concat()).unwrap();
    fixture.guest.start(0);
    let replies = std::iter::repeat_with(|| {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_le_bytes(*head.first_chunk().unwrap());
        let mut body = vec![0; length as usize - 5];
        stream.read_exact(&mut body).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let kind = body.get("kind").unwrap_or(&body["type"]);
        (head[5], kind.as_str().unwrap().to_owned())
    });
    let mut replies: Vec<_> = replies.take(5).collect();
    replies.sort();
    let expected = ["started", "invalid", "invalid", "invalid", "info"];
    let expected = (1..).zip(expected.map(str::to_owned));
    assert_eq!(replies, expected.collect::<Vec<_>>());
}
