//! What the SDK makes of guests that answer nonsense or nothing. The guest, and the machine that it is
//! in, are played: an agent of ours would not say such things.

#[path = "../../../owner/tests/owner/support/mod.rs"]
mod played;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::Duration;

use micabox::{
    Command, Error, ErrorKind, FileKind, Files, SandboxRef, Sandboxes, Store, Timestamp,
};
use micabox_wire::files::{FileChange, FileEntry, FileEvent, FileReply, FileStat};
use micabox_wire::{ExitStatus, OutputStream, StartFailed, StartFailure, ToHost};
use played::{Fixture, Guest};
use serde_json::json;

/// What a guest does when it is asked to start a command.
type Answer = fn(&mut Guest);

/// What a client does.
type Call = fn(&SandboxRef) -> Result<(), Error>;

/// Starts the command, and writes to its streams.
fn outputs(guest: &mut Guest, stdout: &[u8], stderr: &[u8], status: ExitStatus) {
    let id = guest.start(0);
    for (stream, data) in [
        (OutputStream::Stdout, stdout),
        (OutputStream::Stderr, stderr),
    ] {
        if !data.is_empty() {
            let data = data.to_vec();
            guest.send(ToHost::Output { id, stream, data });
        }
    }
    guest.send(ToHost::Exited { id, status });
}

fn replies(guest: &mut Guest, replies: &[FileReply]) {
    let mut frames = Vec::new();
    for reply in replies {
        micabox_wire::encode(reply, &mut frames).unwrap();
    }
    outputs(guest, &frames, b"", ExitStatus::Exited(0));
}

fn refuses(guest: &mut Guest, reason: StartFailure, errno: i32) {
    let micabox_wire::ToGuest::Exec { id, .. } = guest.receive() else {
        panic!("no command");
    };
    let failure = StartFailed {
        reason,
        message: "no\n\u{1b}]0;t\u{7}".into(),
        errno,
    };
    guest.send(ToHost::StartFailed { id, failure });
}

const STAT: FileStat = FileStat {
    kind: FileKind::File,
    mode: u16::MAX,
    uid: u32::MAX,
    gid: u32::MAX,
    size: u64::MAX,
    allocated: u64::MAX,
    links: 0,
    inode: 0,
    device: (u32::MAX, u32::MAX),
    accessed: Timestamp {
        seconds: i64::MIN,
        nanos: u32::MAX,
    },
    modified: Timestamp {
        seconds: i64::MAX,
        nanos: u32::MAX,
    },
    changed: Timestamp {
        seconds: 0,
        nanos: 0,
    },
    created: None,
};

fn entry(guest: &mut Guest, path: &[u8]) {
    let entry = FileEntry {
        path: path.to_vec(),
        stat: STAT,
        target: Vec::new(),
    };
    replies(guest, &[FileReply::Entry(entry)]);
}

fn event(guest: &mut Guest, path: &[u8]) {
    let event = FileEvent {
        change: FileChange::Created,
        path: path.to_vec(),
        is_directory: false,
        cookie: 0,
    };
    replies(guest, &[FileReply::Event(event)]);
}

const DONE: ExitStatus = ExitStatus::Exited(0);

fn stat(sandbox: &SandboxRef) -> Result<(), Error> {
    sandbox.files().stat("/x").map(drop)
}

fn list(sandbox: &SandboxRef) -> Result<(), Error> {
    let mut entries = sandbox.files().list("/x", 9)?;
    entries.find_map(Result::err).map_or(Ok(()), Err)
}

fn watch(sandbox: &SandboxRef) -> Result<(), Error> {
    let mut events = sandbox.files().watch("/x", true)?;
    events.find_map(Result::err).map_or(Ok(()), Err)
}

fn run(sandbox: &SandboxRef) -> Result<(), Error> {
    sandbox.exec(&Command::new(["true"]))?.wait().map(drop)
}

fn read(sandbox: &SandboxRef) -> Result<(), Error> {
    sandbox.files().read("/x").map(drop)
}

fn top(sandbox: &SandboxRef) -> Result<(), Error> {
    sandbox.processes().map(drop)
}

const CASES: &[(&str, Answer, Call, ErrorKind)] = &[
    (
        "no list",
        |guest| outputs(guest, b"\xff\0\x1b", b"", DONE),
        top,
        ErrorKind::Guest,
    ),
    (
        "half a list",
        |guest| outputs(guest, b"1 2", b"", DONE),
        top,
        ErrorKind::Guest,
    ),
    (
        "a list that failed",
        |guest| outputs(guest, b"", b"", ExitStatus::Exited(1)),
        top,
        ErrorKind::Guest,
    ),
    (
        "no reply",
        |guest| outputs(guest, b"", b"", DONE),
        stat,
        ErrorKind::Guest,
    ),
    (
        "garbage",
        |guest| outputs(guest, &[0xa5; 999], b"", DONE),
        stat,
        ErrorKind::Guest,
    ),
    (
        "half a reply",
        |guest| outputs(guest, &[9, 0, 0, 0, 1], b"", DONE),
        stat,
        ErrorKind::Guest,
    ),
    (
        "an endless reply",
        |guest| outputs(guest, &[0xff; 4], b"", DONE),
        stat,
        ErrorKind::Guest,
    ),
    (
        "another reply",
        |guest| {
            replies(
                guest,
                &[FileReply::Target {
                    target: b"x".to_vec(),
                }],
            )
        },
        stat,
        ErrorKind::Guest,
    ),
    (
        "a failure without a reason",
        |guest| outputs(guest, b"", b"", ExitStatus::Exited(1)),
        stat,
        ErrorKind::Guest,
    ),
    (
        "garbage for a reason",
        |guest| outputs(guest, b"", &[0xa5; 99], ExitStatus::Exited(1)),
        stat,
        ErrorKind::Guest,
    ),
    (
        "a killed operation",
        |guest| outputs(guest, b"", b"", ExitStatus::Signaled(9)),
        stat,
        ErrorKind::Guest,
    ),
    (
        "no such error",
        |guest| refuses(guest, StartFailure::File, i32::MIN),
        stat,
        ErrorKind::Invalid,
    ),
    (
        "no such file",
        |guest| refuses(guest, StartFailure::File, 2),
        stat,
        ErrorKind::NotFound,
    ),
    (
        "bytes and a failure",
        |guest| outputs(guest, b"x", &[0xa5; 99], ExitStatus::Exited(1)),
        read,
        ErrorKind::Guest,
    ),
    (
        "a path out",
        |guest| entry(guest, b"a/../../x"),
        list,
        ErrorKind::Guest,
    ),
    (
        "an absolute path",
        |guest| entry(guest, b"/etc/passwd"),
        list,
        ErrorKind::Guest,
    ),
    ("no path", |guest| entry(guest, b""), list, ErrorKind::Guest),
    (
        "an event for an entry",
        |guest| event(guest, b"x"),
        list,
        ErrorKind::Guest,
    ),
    (
        "an event out",
        |guest| event(guest, b"../x"),
        watch,
        ErrorKind::Guest,
    ),
    (
        "an entry for an event",
        |guest| entry(guest, b"x"),
        watch,
        ErrorKind::Guest,
    ),
    (
        "a link for a target",
        |guest| replies(guest, &[FileReply::Stat(STAT)]),
        |sandbox| sandbox.files().read_link("/x").map(drop),
        ErrorKind::Guest,
    ),
    (
        "another reason",
        |guest| refuses(guest, StartFailure::Other, 12),
        run,
        ErrorKind::Guest,
    ),
    (
        "not a program",
        |guest| refuses(guest, StartFailure::NotFound, 2),
        run,
        ErrorKind::NotFound,
    ),
    (
        "an end without a start",
        |guest| {
            let micabox_wire::ToGuest::Exec { id, .. } = guest.receive() else {
                panic!("no command");
            };
            guest.send(ToHost::Exited { id, status: DONE });
        },
        run,
        ErrorKind::Guest,
    ),
    (
        "another command",
        |guest| {
            let id = guest.start(0);
            guest.output(id + 1, b"x");
        },
        run,
        ErrorKind::Guest,
    ),
    (
        "the end of the conversation",
        |guest| {
            guest.start(0);
            guest.stream.shutdown(std::net::Shutdown::Both).unwrap();
            guest.machine.end(micabox::Exit::TripleFault);
        },
        run,
        ErrorKind::Disconnected,
    ),
];

/// A sandbox on record whose owner has a guest that is played.
struct Sandbox {
    _store: tempfile::TempDir,
    _lock: File,
    found: SandboxRef,
}

impl Sandbox {
    fn of(fixture: &Fixture) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let sandboxes = Sandboxes::open(&store).unwrap();
        let id = "ab".repeat(16);
        let own = fixture.directory.path();
        let digest = format!("sha256:{id}{id}");
        let record = json!({
            "id": id, "name": "it", "image": {"reference": "box", "digest": digest},
            "command": "", "created": 0, "memory_mib": 64, "cpus": 1, "transport": "pmem",
            "root": "merged", "auto_remove": false, "owner": null, "machine": null,
            "status": {"state": "running", "since": 0},
        });
        fs::write(own.join("state.json"), record.to_string()).unwrap();
        let lock = File::create(own.join("lock")).unwrap();
        lock.lock().unwrap();
        symlink(own, directory.path().join("sandboxes").join(&id)).unwrap();
        Self {
            found: sandboxes.get("it").unwrap(),
            _lock: lock,
            _store: directory,
        }
    }
}

/// Makes a call while a guest answers it. Returns the error.
fn answered(mut fixture: Fixture, answer: Answer, call: Call) -> Error {
    let sandbox = Sandbox::of(&fixture);
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&mut fixture.guest));
        call(&sandbox.found).unwrap_err()
    })
}

#[test]
fn a_guest_that_answers_nonsense_is_an_error_of_the_right_kind() {
    for (what, answer, call, kind) in CASES {
        let error = answered(Fixture::booted(), *answer, *call);
        assert_eq!(error.kind(), *kind, "{what}: {error}");
    }
}

#[test]
fn a_guest_that_answers_nothing_is_waited_for_as_long_as_for_its_boot() {
    // All at once: the fixture's own boot has as long.
    std::thread::scope(|scope| {
        for call in [run as Call, stat, read, list, watch, top] {
            scope.spawn(move || {
                let fixture = Fixture::booted_within(Duration::from_secs(10));
                let error = answered(fixture, |_| {}, call);
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                let said = error.to_string();
                assert!(said.contains("has not answered for 10 seconds"), "{said}");
            });
        }
    });
}

/// Begins a file operation of which the guest then says nothing more.
fn begins(guest: &mut Guest) {
    let id = guest.start(0);
    guest.output(id, b"some bytes");
}

#[test]
fn a_file_operation_that_falls_silent_fails() {
    let calls: [Call; 4] = [
        |sandbox| files(sandbox).stat("/x").map(drop),
        |sandbox| files(sandbox).read("/x").map(drop),
        |sandbox| files(sandbox).remove("/x", true),
        // The guest has no room for a byte of it.
        |sandbox| files(sandbox).write("/x", &[0; 1 << 20]),
    ];
    for call in calls {
        let error = answered(Fixture::booted(), begins, call);
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(
            error.to_string().contains("has not answered for 1 seconds"),
            "{error}"
        );
    }
}

#[test]
fn a_client_that_pauses_is_not_the_guests_silence() {
    let mut fixture = Fixture::booted();
    let sandbox = Sandbox::of(&fixture);
    const PAUSE: Duration = Duration::from_millis(2500);
    let (sent, all_sent) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let guest = &mut fixture.guest;
        scope.spawn(move || {
            // Twice a pipe's capacity: the owner holds the rest until the client reads.
            let id = guest.start(0);
            for _ in 0..128 {
                guest.output(id, &[7; 1024]);
            }
            // Sleep: the client's pause, longer than a guest may be silent.
            std::thread::sleep(PAUSE);
            guest.send(ToHost::Exited { id, status: DONE });
            sent.send(()).unwrap();
        });
        let mut file = files(&sandbox.found).open("/x").unwrap();
        all_sent.recv().unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        assert_eq!(bytes.len(), 128 * 1024);
    });
}

/// The files of a sandbox that may be silent for a second.
fn files(sandbox: &SandboxRef) -> Files {
    sandbox.files().answer_timeout(Duration::from_secs(1))
}
