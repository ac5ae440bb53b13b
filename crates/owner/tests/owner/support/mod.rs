//! An owner with a machine that is nothing but a socket, and a guest that the test plays.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use micabox_owner::protocol::frame::Pipe;
use micabox_owner::protocol::{Exec, Frame, Limit, Place, Reply, Request, Stream};
use micabox_owner::{Client, Launch, Outcome, Registrar, Start, serve};
use micabox_testing::PATIENCE;
use micabox_vmm::{Exit, Machine, Snapshot};
use micabox_wire::{
    Boot, BootTimings, Confinement, Hello, Identity, Init, OutputStream, Setup, ToGuest, ToHost,
    Upper, preamble, read_message, write_message,
};

/// A machine that is only a socket: killing it closes the socket.
pub struct FakeMachine {
    agent: UnixStream,
    exit: Mutex<Option<Exit>>,
    changed: Condvar,
    /// Whether a kill takes effect only with [`FakeMachine::end`].
    pub lingers: AtomicBool,
    /// How often the machine was frozen.
    pub frozen: Mutex<u32>,
    /// The memory that it was restored with.
    pub base: Arc<File>,
}

impl FakeMachine {
    /// Makes the machine end by itself.
    pub fn end(&self, exit: Exit) {
        *self.exit.lock().unwrap() = Some(exit);
        self.changed.notify_all();
    }

    pub fn is_gone(&self) -> bool {
        self.exit.lock().unwrap().is_some()
    }
}

impl Machine for FakeMachine {
    fn agent(&self) -> io::Result<UnixStream> {
        self.agent.try_clone()
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn save(&self, to: &Snapshot, meanwhile: &mut dyn FnMut()) -> Result<(), micabox_vmm::Error> {
        let what: &[u8] = if to.base.is_some() {
            b"delta"
        } else {
            b"memory"
        };
        (&*to.memory).write_all(what).unwrap();
        self.pause(meanwhile)
    }

    fn base(&self) -> Option<Arc<File>> {
        Some(Arc::clone(&self.base))
    }

    fn pause(&self, meanwhile: &mut dyn FnMut()) -> Result<(), micabox_vmm::Error> {
        *self.frozen.lock().unwrap() += 1;
        meanwhile();
        Ok(())
    }

    fn limit_disks(&self, _: &micabox_spec::DiskRate) -> Result<(), micabox_vmm::Error> {
        Err(micabox_vmm::Error::Paused)
    }

    fn limit_processors(&self, quota: Option<u32>) -> Result<(), micabox_vmm::Error> {
        let why = || micabox_vmm::Error::NoLimits { why: "none".into() };
        quota.map(drop).ok_or_else(why)
    }

    fn is_stalled(&self) -> bool {
        false
    }

    fn wait(&self, timeout: Duration) -> Option<Exit> {
        let exit = self.exit.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(exit, timeout, |exit| exit.is_none());
        waited.unwrap().0.clone()
    }

    fn kill(&self) {
        if self.lingers.load(Ordering::Acquire) {
            return;
        }
        self.exit.lock().unwrap().get_or_insert(Exit::Killed {
            signal: 9,
            by_us: true,
            message: String::new(),
        });
        self.changed.notify_all();
        let _ = self.agent.shutdown(std::net::Shutdown::Both);
    }

    fn console_tail(&self) -> String {
        "last words".into()
    }
}

/// The guest's end of the stream.
pub struct Guest {
    pub stream: UnixStream,
    pub machine: Arc<FakeMachine>,
}

impl Guest {
    pub fn send(&mut self, message: ToHost) {
        write_message(&mut self.stream, &message).unwrap();
    }

    pub fn receive(&mut self) -> ToGuest {
        read_message(&mut self.stream).unwrap().unwrap()
    }

    /// Starts the next requested command and returns its ID.
    pub fn start(&mut self, stdin_window: u32) -> u32 {
        let ToGuest::Exec { id, .. } = self.receive() else {
            panic!("no command");
        };
        self.send(ToHost::Started {
            id,
            pid: 7,
            stdin_window,
        });
        id
    }

    pub fn output(&mut self, id: u32, data: &[u8]) {
        self.send(ToHost::Output {
            id,
            stream: OutputStream::Stdout,
            data: data.to_vec(),
        });
    }

    /// Shuts down on request, as a guest does.
    pub fn shut_down(mut self, problem: Option<&str>) {
        while self.receive() != ToGuest::Shutdown {}
        let problem = problem.map(str::to_owned);
        self.send(ToHost::ShutdownDone { problem });
        self.machine.end(Exit::PoweredOff);
    }
}

/// What the owner recorded.
pub type Record = Arc<Mutex<Vec<String>>>;

struct Notes(Record);

impl Registrar for Notes {
    fn expires(&mut self, _idle_timeout: u64, _max_life: u64) -> io::Result<()> {
        Ok(())
    }

    fn limited(&mut self, limit: Limit) -> io::Result<()> {
        self.0.lock().unwrap().push(format!("limited {limit:?}"));
        Ok(())
    }

    fn event(&mut self, _action: &str, _attributes: &[(&str, String)]) {}

    fn paused(&mut self, _is_paused: bool) -> io::Result<()> {
        Ok(())
    }

    fn rename(&mut self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn running(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().push("running".to_owned());
        Ok(())
    }

    fn detached(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().push("detached".to_owned());
        Ok(())
    }

    fn log(&mut self, stream: Stream, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        self.0.lock().unwrap().push(format!("{stream:?}: {text}"));
    }

    fn ended(&mut self, outcome: &Outcome<'_>) {
        let failure = outcome.failure.map(|failure| failure.message.clone());
        let (code, abandoned) = (outcome.code, outcome.is_abandoned);
        let text = format!("ended {code:?} {failure:?} {abandoned}");
        self.0.lock().unwrap().push(text);
    }
}

/// An owner in a thread, its creator's connection, and its guest.
pub struct Fixture {
    pub creator: Client,
    pub guest: Guest,
    pub directory: tempfile::TempDir,
    pub record: Record,
    pub owner: JoinHandle<io::Result<()>>,
}

pub fn identity() -> Identity {
    Identity {
        hostname: "h".into(),
        machine_id: "0".repeat(32),
        resolv_conf: Vec::new(),
        network: None,
        wall_clock: (0, 0),
        entropy: [0; 32],
    }
}

fn boot() -> Start {
    Start::Boot(Box::new(Boot {
        lowers: Vec::new(),
        upper: Upper::Tmpfs {
            size_bytes: None,
            patches: None,
        },
        init: Init::Reaper,
        identity: identity(),
        setup: Setup::default(),
    }))
}

impl Fixture {
    /// Makes a fixture with a guest that has sent nothing yet.
    pub fn new() -> Self {
        Self::starting(boot(), PATIENCE, false)
    }

    /// Makes a fixture as [`Fixture::new`]; with `keeps`, there is a disk that must be flushed.
    pub fn starting(start: Start, timeout: Duration, keeps: bool) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let machine = Arc::new(FakeMachine {
            agent: ours,
            exit: Mutex::new(None),
            changed: Condvar::new(),
            lingers: AtomicBool::new(false),
            frozen: Mutex::new(0),
            base: Arc::new(tempfile::tempfile().unwrap()),
        });
        let (creator, owners) = UnixStream::pair().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let disk = keeps.then(|| directory.path().join("disk"));
        if let Some(disk) = &disk {
            std::fs::write(disk, "").unwrap();
        }
        let record = Record::default();
        let launch = Launch {
            machine: Arc::clone(&machine) as _,
            start,
            timeout,
            network: None,
            disk,
            holds_nothing: !keeps,
            learn: None,
            stop_signal: 15,
            confinement: confinement(),
            saves: Ok(serde_json::json!({ "a": 1 })),
            directory: directory.path().to_owned(),
            creator: owners,
            registrar: Box::new(Notes(Arc::clone(&record))),
        };
        Self {
            creator: Client::over(creator).unwrap(),
            guest: Guest {
                stream: theirs,
                machine,
            },
            directory,
            record,
            owner: std::thread::spawn(move || serve(launch)),
        }
    }

    /// Makes a fixture with a guest that has booted.
    pub fn booted() -> Self {
        Self::booted_with(false)
    }

    pub fn booted_with(keeps: bool) -> Self {
        Self::starting(boot(), PATIENCE, keeps).boot()
    }

    /// As [`Fixture::booted`], with a guest that has so long to answer.
    pub fn booted_within(timeout: Duration) -> Self {
        Self::starting(boot(), timeout, false).boot()
    }

    fn boot(self) -> Self {
        let mut fixture = self;
        fixture.greet();
        assert!(matches!(fixture.guest.receive(), ToGuest::Boot(_)));
        let booted = BootTimings { phases: Vec::new() };
        fixture.guest.send(ToHost::Booted(booted));
        let up = fixture.reply();
        assert!(matches!(up, Reply::Up(_)), "{up:?}");
        fixture
    }

    pub fn greet(&mut self) {
        self.guest.stream.write_all(&preamble::encode()).unwrap();
        self.guest.send(hello());
    }

    /// Returns the next message to the creator without a request.
    pub fn reply(&mut self) -> Reply {
        reply(&mut self.creator, 0)
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.directory.path()).unwrap()
    }

    /// Returns the record once the owner is gone.
    pub fn record_at_end(self) -> Vec<String> {
        self.owner.join().unwrap().unwrap();
        assert!(!self.directory.path().join("control").exists());
        let record = self.record.lock().unwrap();
        record.clone()
    }
}

pub fn hello() -> ToHost {
    ToHost::Hello(Hello {
        kernel: "6.12".into(),
        init_uptime_us: 1,
        memory_bytes: 1,
        cpus: 1,
    })
}

/// Makes a command with its streams in frames.
/// What limits the sandbox's commands.
pub fn confinement() -> Confinement {
    Confinement {
        capabilities: Some(0b11),
        ulimits: Vec::new(),
        groups: vec!["staff".to_owned()],
        no_new_privileges: false,
    }
}

pub fn framed() -> Exec {
    Exec {
        argv: vec!["true".into()],
        stdin: Place::Frames,
        stdout: Place::Frames,
        stderr: Place::Frames,
        ..Exec::default()
    }
}

/// Starts a command as request 1. Returns the agent's number for it.
pub fn start(client: &mut Client, guest: &mut Guest, exec: Exec, stdin_window: u32) -> u32 {
    let request = Request::Exec(Box::new(exec));
    client.request(1, &request, &[]).unwrap();
    let id = guest.start(stdin_window);
    let started = reply(client, 1);
    assert!(
        matches!(started, Reply::Started { pid: 7, .. }),
        "{started:?}"
    );
    id
}

#[track_caller]
pub fn reply(client: &mut Client, number: u32) -> Reply {
    let deadline = Instant::now().checked_add(PATIENCE);
    client.reply(number, deadline).unwrap().expect("an answer")
}

/// Returns the next bytes of a command's stdout.
#[track_caller]
pub fn output(client: &mut Client) -> Vec<u8> {
    let deadline = Instant::now().checked_add(PATIENCE);
    match client.receive(deadline).unwrap() {
        Some(Frame::Data(1, Pipe::Stdout, data)) => data,
        other => panic!("{other:?}"),
    }
}

/// Returns all bytes until the end.
pub fn read_all(mut reader: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Starts the first command of a sandbox that its creator leaves to itself.
pub fn detached(fixture: &mut Fixture, stdin_window: u32) -> u32 {
    let mut client = fixture.connect();
    let exec = Exec {
        stdin: Place::Idle,
        stdout: Place::Log,
        stderr: Place::Log,
        lifetime: true,
        detach: true,
        ..framed()
    };
    start(&mut client, &mut fixture.guest, exec, stdin_window)
}
