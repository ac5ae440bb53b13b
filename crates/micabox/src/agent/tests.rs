//! Conversations with guests that we play ourselves, good ones and bad ones.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use micabox_vmm::Exit;
use micabox_wire::{BootFailed, BootTimings, Identity, Init, StartFailure, Upper};

use super::*;
use crate::error::LostReason;
use crate::process::Process;
use crate::{Command, Error};

const SOON: Duration = Duration::from_secs(30);

/// A machine that is nothing but a socket: killed means closed.
struct FakeMachine {
    agent: UnixStream,
    exit: Mutex<Option<Exit>>,
}

impl Machine for FakeMachine {
    fn agent(&self) -> io::Result<UnixStream> {
        self.agent.try_clone()
    }

    fn pid(&self) -> u32 {
        0
    }

    fn save(
        &self,
        _: &micabox_vmm::Snapshot,
        _: &mut dyn FnMut(),
    ) -> Result<(), micabox_vmm::Error> {
        Err(micabox_vmm::Error::NoSnapshots { backend: "fake" })
    }

    fn pause(&self, _meanwhile: &mut dyn FnMut()) -> Result<(), micabox_vmm::Error> {
        unreachable!()
    }

    fn is_stalled(&self) -> bool {
        false
    }

    fn wait(&self, _: Duration) -> Option<Exit> {
        self.exit.lock().unwrap().clone()
    }

    fn kill(&self) {
        self.exit.lock().unwrap().get_or_insert(Exit::Killed {
            signal: 9,
            by_us: true,
            message: String::new(),
        });
        let _ = self.agent.shutdown(std::net::Shutdown::Both);
    }

    fn console_tail(&self) -> String {
        "last words".into()
    }
}

/// The guest's end of the stream.
struct Guest {
    stream: UnixStream,
    machine: Arc<FakeMachine>,
}

impl Guest {
    fn say(&mut self, message: ToHost) {
        write_message(&mut self.stream, &message).unwrap();
    }

    fn hear(&mut self) -> ToGuest {
        read_message(&mut self.stream).unwrap().unwrap()
    }

    /// The id of the next command that is asked for.
    fn hear_exec(&mut self) -> u32 {
        match self.hear() {
            ToGuest::Exec { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    fn output(&mut self, id: u32, data: &[u8]) {
        self.say(ToHost::Output {
            id,
            stream: OutputStream::Stdout,
            data: data.to_vec(),
        });
    }

    /// Ends as a machine does that powers off.
    fn power_off(self) {
        *self.machine.exit.lock().unwrap() = Some(Exit::PoweredOff);
    }
}

fn hello() -> ToHost {
    ToHost::Hello(Hello {
        kernel: "6.12".into(),
        init_uptime_us: 1,
        memory_bytes: 1,
        cpus: 1,
    })
}

fn identity() -> Identity {
    Identity {
        hostname: "h".into(),
        machine_id: "0".repeat(32),
        resolv_conf: Vec::new(),
        network: None,
        wall_clock: (0, 0),
        entropy: [0; 32],
    }
}

fn boot_message() -> Boot {
    Boot {
        lowers: Vec::new(),
        upper: Upper::Tmpfs {
            size_bytes: None,
            patches: None,
        },
        init: Init::Reaper,
        identity: identity(),
    }
}

/// A conversation with a guest that has said nothing yet.
fn start() -> (Agent, Guest) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let machine = Arc::new(FakeMachine {
        agent: ours,
        exit: Mutex::new(None),
    });
    let guest = Guest {
        stream: theirs,
        machine: Arc::clone(&machine),
    };
    (Agent::start(machine).unwrap(), guest)
}

/// A conversation with a guest that has booted.
fn booted() -> (Agent, Guest) {
    let (agent, mut guest) = start();
    guest.stream.write_all(&preamble::encode()).unwrap();
    guest.say(hello());
    let booting = std::thread::spawn(move || {
        agent.boot(boot_message(), Instant::now() + SOON).unwrap();
        agent
    });
    assert!(matches!(guest.hear(), ToGuest::Boot(_)));
    guest.say(ToHost::Booted(BootTimings { phases: Vec::new() }));
    (booting.join().unwrap(), guest)
}

/// A command that runs, and its id.
fn running(agent: &Agent, guest: &mut Guest, stdin_window: u32) -> (Process, u32) {
    let mut command = Command::new(["true"]);
    command.stdin = stdin_window > 0;
    let shared = agent.shared();
    let starting =
        std::thread::spawn(move || Process::start(shared, command.to_wire(OUTPUT_WINDOW)));
    let id = guest.hear_exec();
    guest.say(ToHost::Started {
        id,
        pid: 7,
        stdin_window,
    });
    (starting.join().unwrap().unwrap(), id)
}

fn boot_error(agent: &Agent, patience: Duration) -> Lost {
    agent
        .boot(boot_message(), Instant::now() + patience)
        .unwrap_err()
}

#[test]
fn a_failed_boot_step_is_told_in_the_guests_words() {
    let (agent, mut guest) = start();
    guest.stream.write_all(&preamble::encode()).unwrap();
    guest.say(hello());
    guest.say(ToHost::BootFailed(BootFailed {
        step: "mount EROFS".into(),
        target: "layer 3".into(),
        errno: 117,
        detail: String::new(),
    }));
    guest.power_off();
    let lost = boot_error(&agent, SOON);
    assert!(
        lost.to_string().starts_with("mount EROFS: layer 3: "),
        "{lost}"
    );
}

#[test]
fn a_silent_guest_is_not_waited_for_for_ever() {
    let (agent, _guest) = start();
    let lost = boot_error(&agent, Duration::from_millis(10));
    assert!(matches!(lost.reason, LostReason::Silent), "{lost}");
    assert_eq!(lost.console, "last words");
}

#[test]
fn an_agent_of_another_version_and_no_agent_are_told_apart() {
    let (agent, mut guest) = start();
    let mut preamble = preamble::encode();
    preamble[8] ^= 0x40;
    guest.stream.write_all(&preamble).unwrap();
    let lost = boot_error(&agent, SOON);
    assert!(lost.to_string().contains("version"), "{lost}");

    let (agent, mut guest) = start();
    guest.stream.write_all(b"login: root\n").unwrap();
    let lost = boot_error(&agent, SOON);
    assert!(lost.to_string().contains("mica-guest"), "{lost}");
}

#[test]
fn a_machine_that_ends_during_boot_says_how() {
    let (agent, guest) = start();
    *guest.machine.exit.lock().unwrap() = Some(Exit::Panicked {
        message: "no init".into(),
    });
    drop(guest);
    let lost = boot_error(&agent, SOON);
    assert!(lost.to_string().contains("no init"), "{lost}");
    assert_eq!(lost.console, "last words");
}

#[test]
fn output_and_exit_code_arrive() {
    let (agent, mut guest) = booted();
    let (mut process, id) = running(&agent, &mut guest, 0);
    assert_eq!(process.pid(), 7);
    assert!(process.stdin.is_none());
    guest.output(id, b"out");
    guest.say(ToHost::Output {
        id,
        stream: OutputStream::Stderr,
        data: b"err".to_vec(),
    });
    let stdout = process.stdout.as_mut().unwrap();
    let mut first = [0; 2];
    stdout.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"ou");
    assert_eq!(process.handle().wait_timeout(Duration::ZERO).unwrap(), None);
    let status = ExitStatus::Signaled(15);
    guest.say(ToHost::Exited { id, status });
    let finished = process.finish().unwrap();
    assert_eq!(finished.stdout, b"t");
    assert_eq!(finished.stderr, b"err");
    assert_eq!(finished.status.code(), 143);
}

#[test]
fn a_command_that_can_not_start_is_an_error_and_forgotten() {
    let (agent, mut guest) = booted();
    let shared = agent.shared();
    let spec = Command::new(["nope"]).to_wire(1);
    let starting = std::thread::spawn(move || Process::start(shared, spec));
    let id = guest.hear_exec();
    guest.say(ToHost::StartFailed {
        id,
        failure: StartFailed {
            reason: StartFailure::NotFound,
            message: "nope: not found".into(),
            errno: 2,
        },
    });
    let error = starting.join().unwrap().unwrap_err();
    assert!(matches!(&error, Error::Start(failed) if failed.exit_code() == 127));
    assert!(agent.shared.lock().commands.is_empty());
}

#[test]
fn stdin_keeps_to_the_window_and_ends() {
    let (agent, mut guest) = booted();
    let (mut process, id) = running(&agent, &mut guest, 10);
    let mut stdin = process.stdin.take().unwrap();
    let writing = std::thread::spawn(move || {
        stdin.write_all(&[b'x'; 25]).unwrap();
    });
    let mut received = 0;
    loop {
        match guest.hear() {
            ToGuest::Stdin { id: to, data } => {
                assert_eq!(to, id);
                assert!(data.len() <= 10);
                received += data.len();
                guest.say(ToHost::StdinCredit {
                    id,
                    bytes: u32::try_from(data.len()).unwrap(),
                });
            }
            ToGuest::CloseStdin { id: to } => {
                assert_eq!(to, id);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    writing.join().unwrap();
    assert_eq!(received, 25);
}

#[test]
fn writing_to_closed_stdin_is_a_broken_pipe() {
    let (agent, mut guest) = booted();
    let (mut process, id) = running(&agent, &mut guest, 4);
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"four").unwrap();
    guest.say(ToHost::StdinClosed { id });
    let error = stdin.write_all(b"five").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_slow_reader_gives_no_credit_and_a_gone_one_does() {
    let (agent, mut guest) = booted();
    let (mut process, id) = running(&agent, &mut guest, 0);
    for _ in 0..OUTPUT_WINDOW as usize / MAX_DATA {
        guest.output(id, &[0; MAX_DATA]);
    }
    let mut half = vec![0; OUTPUT_WINDOW as usize / 2];
    process
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut half)
        .unwrap();
    let credit = |bytes| ToGuest::Credit {
        id,
        stream: OutputStream::Stdout,
        bytes,
    };
    assert_eq!(guest.hear(), credit(OUTPUT_WINDOW / 2));
    drop(process.stdout.take());
    assert_eq!(guest.hear(), credit(OUTPUT_WINDOW / 2));
}

type Misbehaviour = Box<dyn Fn(&mut Guest, u32)>;

#[test]
fn breaking_the_protocol_ends_the_machine() {
    let flood = |guest: &mut Guest, id| {
        for _ in 0..=OUTPUT_WINDOW as usize / MAX_DATA {
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
        ("hello again", Box::new(|guest, _| guest.say(hello()))),
        (
            "started again",
            Box::new(|guest, id| {
                guest.say(ToHost::Started {
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
        let (agent, mut guest) = booted();
        let (process, id) = running(&agent, &mut guest, 0);
        misbehave(&mut guest, id);
        match process.wait() {
            Err(Error::Lost(lost)) => {
                assert!(
                    matches!(lost.reason, LostReason::Protocol(_)),
                    "{what}: {lost}"
                );
            }
            other => panic!("{what}: {other:?}"),
        }
        assert!(guest.machine.wait(SOON).is_some(), "{what}");
    }
}

#[test]
fn a_guest_that_stops_listening_blocks_only_stdin() {
    let (agent, mut guest) = booted();
    let (mut process, id) = running(&agent, &mut guest, u32::MAX);
    let mut stdin = process.stdin.take().unwrap();
    let writing = std::thread::spawn(move || {
        let chunk = vec![0; 1 << 20];
        while stdin.write_all(&chunk).is_ok() {}
    });
    // The guest reads nothing, and yet its output arrives and signals can be sent.
    let handle = process.handle();
    handle.signal(15);
    guest.output(id, b"x");
    let mut byte = [0];
    process
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut byte)
        .unwrap();
    assert!(!writing.is_finished());
    drop(agent);
    writing.join().unwrap();
    handle.wait().unwrap_err();
}

#[test]
fn an_endless_argument_list_is_refused() {
    let (agent, _guest) = booted();
    let spec = Command::new(["x".repeat(5 << 20)]).to_wire(1);
    let error = Process::start(agent.shared(), spec).unwrap_err();
    assert!(matches!(error, Error::Command(CommandError::TooLong)));
}

#[test]
fn shutting_down_tells_what_was_lost() {
    let (agent, mut guest) = booted();
    let guest = std::thread::spawn(move || {
        assert_eq!(guest.hear(), ToGuest::Shutdown);
        guest.say(ToHost::ShutdownDone {
            problem: Some("umount: busy".into()),
        });
        guest
    });
    agent.begin_shut_down();
    let lost = agent.is_shut_down(Instant::now() + SOON).unwrap_err();
    assert!(lost.to_string().contains("umount: busy"), "{lost}");
    drop(guest.join().unwrap());
}

#[test]
fn a_guest_that_rests_hears_nothing_but_that_it_may_go_on() {
    let (agent, mut guest) = booted();
    let (process, id) = running(&agent, &mut guest, 1 << 20);
    let handle = process.handle();
    let meanwhile = std::thread::spawn(move || {
        assert_eq!(guest.hear(), ToGuest::Rest);
        guest.say(ToHost::Resting);
        let first = guest.hear();
        assert!(matches!(first, ToGuest::GoOn { .. }), "{first:?}");
        assert_eq!(guest.hear(), ToGuest::Signal { id, signal: 10 });
        guest
    });
    let deadline = Instant::now() + SOON;
    let copied = agent.rest(
        deadline,
        [1; 32],
        || (7, 8),
        || {
            handle.signal(10);
            "copied"
        },
    );
    assert_eq!(copied.unwrap(), "copied");
    drop(meanwhile.join().unwrap());
}

#[test]
fn a_copy_is_another_machine_with_a_command_that_goes_on() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let machine = Arc::new(FakeMachine {
        agent: ours,
        exit: Mutex::default(),
    });
    let agent = Agent::of_copy(Arc::clone(&machine) as _).unwrap();
    let mut guest = Guest {
        stream: theirs,
        machine,
    };
    let guest = std::thread::spawn(move || {
        let ToGuest::Resume(resume) = guest.hear() else {
            panic!("no copy");
        };
        assert_eq!(resume.identity, identity());
        assert_eq!(resume.adopt.map(|adopt| adopt.id), Some(5));
        guest.say(ToHost::Resumed);
        guest.say(ToHost::Started {
            id: 5,
            pid: 42,
            stdin_window: 0,
        });
        guest.output(5, b"on");
        guest
    });
    agent
        .resume(identity(), Some(5), Instant::now() + SOON)
        .unwrap();
    let mut process = Process::adopted(agent.shared(), 5).unwrap();
    assert_eq!(process.pid(), 42);
    let mut bytes = [0; 2];
    process
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    assert_eq!(&bytes, b"on");
    drop(guest.join().unwrap());
}
