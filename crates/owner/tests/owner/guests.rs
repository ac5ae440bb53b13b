//! Guests, good ones and bad ones, and what an owner makes of them.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use micabox_owner::protocol::{Exec, Failure, Kind, Limit, Reply, Request};
use micabox_owner::{Client, Lost, LostReason, Start};
use micabox_testing::PATIENCE;
use micabox_vmm::Exit;
use micabox_wire::{
    BootFailed, BootPart, ExitStatus, MAX_DATA, OutputStream, Setup, StartFailed, StartFailure,
    ToGuest, ToHost, preamble, write_message,
};

use crate::support::{Fixture, Guest, framed, hello, identity, output, reply, start};

/// Returns the failure that the creator receives for a start that fails.
fn boot_error(fixture: &mut Fixture) -> Lost {
    match fixture.reply() {
        Reply::Failed(Failure {
            kind: Kind::Lost,
            lost: Some(lost),
            ..
        }) => *lost,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_boot_step_is_reported_with_the_guests_message() {
    let mut fixture = Fixture::new();
    fixture.greet();
    fixture.guest.send(ToHost::BootFailed(BootFailed {
        step: "mount EROFS".into(),
        target: "layer 3".into(),
        errno: 117,
        detail: String::new(),
        part: BootPart::Root,
    }));
    let lost = boot_error(&mut fixture);
    let text = lost.to_string();
    assert!(text.starts_with("mount EROFS: layer 3: "), "{text}");
}

#[test]
fn the_wait_for_a_silent_guest_ends() {
    let start = Start::Restore {
        identity: Box::new(identity()),
        main: None,
        setup: Setup::default(),
    };
    let mut fixture = Fixture::starting(start, Duration::from_millis(10), false);
    let lost = boot_error(&mut fixture);
    assert_eq!(lost.reason, LostReason::Silent);
    assert_eq!(lost.console, "last words");
}

#[test]
fn an_agent_of_another_version_is_told_from_a_stranger() {
    let mut fixture = Fixture::new();
    let mut preamble = preamble::encode();
    preamble[8] ^= 0x40;
    fixture.guest.stream.write_all(&preamble).unwrap();
    let lost = boot_error(&mut fixture);
    assert!(lost.to_string().contains("version"), "{lost}");

    let mut fixture = Fixture::new();
    fixture.guest.stream.write_all(b"login: root\n").unwrap();
    let lost = boot_error(&mut fixture);
    assert!(lost.to_string().contains("mica-guest"), "{lost}");
}

#[test]
fn a_machine_that_ends_during_boot_is_reported_with_its_exit() {
    let mut fixture = Fixture::new();
    fixture.guest.machine.end(Exit::Panicked {
        message: "no init".into(),
    });
    let stream = &fixture.guest.stream;
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    let lost = boot_error(&mut fixture);
    assert!(lost.to_string().contains("no init"), "{lost}");
    assert_eq!(lost.console, "last words");
}

#[test]
fn a_command_that_can_not_start_is_an_error_and_forgotten() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    for _ in 0..2 {
        let request = Request::Exec(Box::new(framed()));
        client.request(1, &request, &[]).unwrap();
        let ToGuest::Exec { id, .. } = fixture.guest.receive() else {
            panic!("no command");
        };
        fixture.guest.send(ToHost::StartFailed {
            id,
            failure: StartFailed {
                reason: StartFailure::NotFound,
                message: "nope: not found".into(),
                errno: 2,
            },
        });
        match reply(&mut client, 1) {
            Reply::Failed(Failure {
                kind: Kind::Start,
                start: Some(start),
                ..
            }) => assert_eq!(start.exit_code(), 127),
            other => panic!("{other:?}"),
        }
    }
}

type Misbehaviour = Box<dyn Fn(&mut Guest, u32)>;

#[test]
fn a_guest_that_breaks_the_protocol_loses_its_machine() {
    let flood = |guest: &mut Guest, id| {
        for _ in 0..=(256 << 10) / MAX_DATA {
            let message = ToHost::Output {
                id,
                stream: OutputStream::Stdout,
                data: vec![0; MAX_DATA],
            };
            // Cut off at some point.
            let _ = write_message(&mut guest.stream, &message);
        }
    };
    let bad: [(&str, Misbehaviour); 6] = [
        ("more than its window", Box::new(flood)),
        (
            "an unknown command",
            Box::new(|guest, id| guest.output(id + 1, b"x")),
        ),
        ("hello again", Box::new(|guest, _| guest.send(hello()))),
        (
            "started again",
            Box::new(|guest, id| {
                guest.send(ToHost::Started {
                    id,
                    pid: 1,
                    stdin_window: 0,
                });
            }),
        ),
        (
            "endless credit",
            Box::new(|guest, id| {
                for _ in 0..2 {
                    let bytes = u32::MAX;
                    let message = ToHost::StdinCredit { id, bytes };
                    let _ = write_message(&mut guest.stream, &message);
                }
            }),
        ),
        (
            "no message",
            Box::new(|guest, _| guest.stream.write_all(&[1, 0, 0, 0, 0xff]).unwrap()),
        ),
    ];
    for (what, misbehave) in bad {
        let mut fixture = Fixture::booted();
        let mut client = fixture.connect();
        let id = start(&mut client, &mut fixture.guest, framed(), 1 << 20);
        misbehave(&mut fixture.guest, id);
        loop {
            match reply(&mut client, 1) {
                Reply::Failed(failure) => {
                    let reason = failure.lost.unwrap().reason;
                    assert!(
                        matches!(reason, LostReason::Protocol(_)),
                        "{what}: {reason:?}"
                    );
                    break;
                }
                Reply::Credit { .. } => {}
                other => panic!("{what}: {other:?}"),
            }
        }
        assert!(fixture.guest.machine.is_gone(), "{what}");
    }
}

/// The owner would keep as much of a client's stdin as the window has.
#[test]
fn a_guest_that_takes_endless_stdin_loses_its_machine() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    client
        .request(1, &Request::Exec(Box::new(framed())), &[])
        .unwrap();
    fixture.guest.start(u32::MAX);
    match reply(&mut client, 1) {
        Reply::Failed(failure) => {
            let reason = failure.lost.unwrap().reason;
            assert!(matches!(reason, LostReason::Protocol(_)), "{reason:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guest_that_stops_listening_blocks_only_stdin() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let exec = Exec {
        stdin: micabox_owner::protocol::Place::Descriptor,
        ..framed()
    };
    let request = Request::Exec(Box::new(exec));
    use std::os::fd::AsFd;
    client.request(1, &request, &[reader.as_fd()]).unwrap();
    drop(reader);
    let id = fixture.guest.start(1 << 20);
    assert!(matches!(reply(&mut client, 1), Reply::Started { .. }));
    let writing = std::thread::spawn(move || {
        let chunk = vec![0; 1 << 20];
        while writer.write_all(&chunk).is_ok() {}
    });
    // The guest reads nothing, and yet its output arrives and signals can be queued.
    client
        .request(1, &Request::Signal { signal: 15 }, &[])
        .unwrap();
    fixture.guest.output(id, b"x");
    assert_eq!(output(&mut client), b"x");
    assert!(!writing.is_finished());
    fixture.creator.end();
    writing.join().unwrap();
    assert!(matches!(reply(&mut client, 1), Reply::Failed(_)));
}

/// A command whose guest says nothing fails, and is killed if it starts after all.
#[test]
fn a_guest_that_never_answers_fails_the_command_and_not_its_caller() {
    let patience = Duration::from_secs(3);
    let mut fixture = Fixture::booted_within(patience);
    let mut client = fixture.connect();
    let request = Request::Exec(Box::new(framed()));
    client.request(1, &request, &[]).unwrap();
    match reply(&mut client, 1) {
        Reply::Failed(failure) => {
            assert_eq!(failure.kind, Kind::Silent);
            assert!(failure.message.contains("3 seconds"), "{failure:?}");
        }
        other => panic!("{other:?}"),
    }
    let id = fixture.guest.start(0);
    let killed = ToGuest::SignalGroup { id, signal: 9 };
    assert_eq!(fixture.guest.receive(), killed);
    // The number is free again, and the sandbox is as good as before.
    start(&mut client, &mut fixture.guest, framed(), 0);
}

#[test]
fn a_command_whose_caller_died_before_it_started_is_killed() {
    let mut fixture = Fixture::booted();
    let client = fixture.connect();
    let request = Request::Exec(Box::new(framed()));
    client.request(1, &request, &[]).unwrap();
    let ToGuest::Exec { id, .. } = fixture.guest.receive() else {
        panic!("no command");
    };
    drop(client);
    // The owner has seen that end when it answers another client.
    let mut other = fixture.connect();
    other.request(1, &Request::Info, &[]).unwrap();
    reply(&mut other, 1);
    fixture.guest.send(ToHost::Started {
        id,
        pid: 7,
        stdin_window: 0,
    });
    let mut messages = std::iter::from_fn(|| Some(fixture.guest.receive()));
    let killed = ToGuest::SignalGroup { id, signal: 9 };
    assert!(messages.any(|message| message == killed));
}

#[test]
fn a_running_sandbox_is_limited_or_the_client_learns_why_not() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let mut ask = |limit| {
        client.request(1, &Request::Limit { limit }, &[]).unwrap();
        reply(&mut client, 1)
    };
    let kind = |reply| match reply {
        Reply::Failed(failure) => failure.kind,
        other => panic!("{other:?}"),
    };
    let processors = Limit::Processors;
    assert_eq!(ask(processors(Some(500))), Reply::Limited);
    assert_eq!(kind(ask(processors(Some(9)))), Kind::Invalid);
    assert_eq!(kind(ask(processors(None))), Kind::Unlimited);
    assert_eq!(ask(Limit::Processes(7)), Reply::Limited);
    let limit = ToGuest::LimitProcesses { most: 7 };
    assert_eq!(fixture.guest.receive(), limit);
    assert_eq!(kind(ask(Limit::Processes(0))), Kind::Invalid);
    let network = Limit::Network {
        incoming: Some(1),
        outgoing: None,
    };
    assert_eq!(kind(ask(network)), Kind::Invalid);
    let record = fixture.record.lock().unwrap().clone();
    let limits = ["limited Processors(Some(500))", "limited Processes(7)"];
    assert_eq!(record, [&["running"][..], &limits].concat());
}

#[test]
fn an_endless_argument_list_is_refused() {
    let fixture = Fixture::booted();
    let mut client = fixture.connect();
    let exec = Exec {
        argv: vec!["x".repeat(5 << 20).as_str().into()],
        ..framed()
    };
    let request = Request::Exec(Box::new(exec));
    client.request(1, &request, &[]).unwrap();
    match reply(&mut client, 1) {
        Reply::Failed(failure) => assert_eq!(failure.kind, Kind::TooLong),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_shutdown_reports_the_guests_problem() {
    let fixture = Fixture::booted_with(true);
    let mut client = fixture.connect();
    client.request(5, &Request::Stop { grace: 0 }, &[]).unwrap();
    let Fixture {
        guest,
        creator: _creator,
        ..
    } = fixture;
    guest.shut_down(Some("umount: busy"));
    match reply(&mut client, 5) {
        Reply::Failed(failure) => {
            assert!(failure.message.contains("umount: busy"), "{failure:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// Has a machine saved by a guest that quiesces; returns the file of its memory, and the reply.
fn save(fixture: &mut Fixture, client: &mut Client, number: u32, delta: bool) -> (File, Reply) {
    let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let memory = true;
    let request = Request::Freeze { memory, delta };
    let descriptors = [files[0].as_fd(), files[1].as_fd()];
    client.request(number, &request, &descriptors).unwrap();
    assert_eq!(fixture.guest.receive(), ToGuest::Quiesce);
    fixture.guest.send(ToHost::Quiesced);
    let [_, memory] = files;
    (memory, reply(client, number))
}

#[test]
fn a_delta_comes_with_its_base() {
    let mut fixture = Fixture::booted();
    fixture.guest.machine.base.set_len(4711).unwrap();
    for (delta, length) in [(true, 5), (false, 6)] {
        let mut saving = fixture.connect();
        let (memory, frozen) = save(&mut fixture, &mut saving, 1, delta);
        match frozen {
            Reply::Frozen { base, .. } => assert_eq!(base, delta),
            other => panic!("{other:?}"),
        }
        assert_eq!(memory.metadata().unwrap().len(), length);
        let base = saving.descriptor().map(File::from);
        let base = base.map(|base| base.metadata().unwrap().len());
        assert_eq!(base, delta.then_some(4711));
        assert!(saving.descriptor().is_none());
        saving.request(1, &Request::Thaw, &[]).unwrap();
        assert_eq!(reply(&mut saving, 1), Reply::Thawed);
        let thaw = fixture.guest.receive();
        assert!(matches!(thaw, ToGuest::Thaw { .. }), "{thaw:?}");
    }
}

#[test]
fn a_quiesced_guest_is_sent_only_thaw() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    let exec = Exec {
        lifetime: true,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 1 << 20);
    let mut saving = fixture.connect();
    let (memory, frozen) = save(&mut fixture, &mut saving, 1, false);
    match frozen {
        Reply::Frozen { main, note, .. } => {
            assert_eq!((main, &note["a"]), (Some(id), &1.into()));
        }
        other => panic!("{other:?}"),
    }
    client
        .request(1, &Request::Signal { signal: 10 }, &[])
        .unwrap();
    // The signal has arrived when the next reply comes.
    client.request(2, &Request::Info, &[]).unwrap();
    assert!(matches!(reply(&mut client, 2), Reply::Info(_)));
    saving.request(1, &Request::Thaw, &[]).unwrap();
    assert_eq!(reply(&mut saving, 1), Reply::Thawed);
    let first = fixture.guest.receive();
    assert!(matches!(first, ToGuest::Thaw { .. }), "{first:?}");
    let signal = ToGuest::Signal { id, signal: 10 };
    assert_eq!(fixture.guest.receive(), signal);
    assert_eq!(memory.metadata().unwrap().len(), 6);
}

#[test]
fn a_command_without_the_sandboxs_lifetime_is_not_reattached() {
    let mut fixture = Fixture::booted();
    let mut client = fixture.connect();
    start(&mut client, &mut fixture.guest, framed(), 1 << 20);
    let (_, frozen) = save(&mut fixture, &mut client, 2, false);
    match frozen {
        Reply::Frozen { main, .. } => assert_eq!(main, None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restored_copy_reattaches_its_command() {
    let restore = Start::Restore {
        identity: Box::new(identity()),
        main: Some(5),
        setup: Setup::default(),
    };
    let mut fixture = Fixture::starting(restore, PATIENCE, false);
    let ToGuest::Restore(restore) = fixture.guest.receive() else {
        panic!("no copy");
    };
    assert_eq!(restore.identity, identity());
    assert_eq!(restore.reattach.map(|reattach| reattach.id), Some(5));
    fixture.guest.send(ToHost::Restored);
    fixture.guest.send(ToHost::Started {
        id: 5,
        pid: 42,
        stdin_window: 0,
    });
    // Output before a client reattaches is not lost.
    fixture.guest.output(5, b"on");
    assert!(matches!(fixture.reply(), Reply::Up(_)));
    let mut client = fixture.connect();
    let request = Request::Reattach(Box::new(framed()));
    client.request(1, &request, &[]).unwrap();
    assert!(matches!(
        reply(&mut client, 1),
        Reply::Started { pid: 42, .. }
    ));
    assert_eq!(output(&mut client), b"on");
    let status = ExitStatus::Exited(3);
    fixture.guest.send(ToHost::Exited { id: 5, status });
    let exited = Reply::Exited {
        status,
        timed_out: false,
        unwritten: None,
        info: None,
    };
    assert_eq!(reply(&mut client, 1), exited);
    // Only one command can be reattached.
    let request = Request::Reattach(Box::new(framed()));
    client.request(2, &request, &[]).unwrap();
    assert!(matches!(reply(&mut client, 2), Reply::Failed(_)));
}

#[test]
fn a_copy_whose_command_no_client_claims_is_stopped_in_order() {
    let restore = Start::Restore {
        identity: Box::new(identity()),
        main: Some(5),
        setup: Setup::default(),
    };
    let mut fixture = Fixture::starting(restore, PATIENCE, true);
    assert!(matches!(fixture.guest.receive(), ToGuest::Restore(_)));
    fixture.guest.send(ToHost::Restored);
    fixture.guest.send(ToHost::Started {
        id: 5,
        pid: 42,
        stdin_window: 0,
    });
    fixture.guest.output(5, b"unread");
    assert!(matches!(fixture.reply(), Reply::Up(_)));
    let mut client = fixture.connect();
    let stop = Request::Stop { grace: 30_000 };
    client.request(1, &stop, &[]).unwrap();
    let signal = ToGuest::Signal { id: 5, signal: 15 };
    while fixture.guest.receive() != signal {}
    let status = ExitStatus::Signaled(15);
    fixture.guest.send(ToHost::Exited { id: 5, status });
    let Fixture {
        guest,
        creator: _creator,
        ..
    } = fixture;
    guest.shut_down(None);
    assert_eq!(reply(&mut client, 1), Reply::Stopped { killed: None });
}
