//! Tests what a call returns: a reply, an error of the worker's own, or its end.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use micabox_jail::{Call, CallError, Death, Limits, Worker};
use micabox_testing::{descendants, wait_until};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

/// The first argument of a process that calls a worker and waits to be killed.
const OWNER: &str = "--owner";

/// Things for a worker to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// Copies one file to the other, in upper case.
    Shout,
    Refuse(Vec<u8>),
    Panic,
    /// Fills memory.
    Allocate(usize),
    /// Writes until there is an error.
    Fill,
    Spin,
    /// Writes a byte to its file, and waits.
    Wait,
    /// Starts threads that wait for each other.
    Threads(usize),
    /// Replies with as many bytes.
    Long(usize),
    /// Replies with its process ID.
    Identify,
}

impl Call for Task {
    const KIND: &'static str = "task";
    type Reply = Vec<u8>;
    type Error = String;

    fn run(self, files: Vec<OwnedFd>) -> Result<Vec<u8>, String> {
        let text = |error: std::io::Error| error.to_string();
        let mut files = files.into_iter().map(File::from);
        match self {
            Self::Shout => {
                let (mut from, mut to) = (files.next().unwrap(), files.next().unwrap());
                let mut bytes = Vec::new();
                from.read_to_end(&mut bytes).map_err(text)?;
                to.write_all(&bytes.to_ascii_uppercase()).map_err(text)?;
                Ok(bytes)
            }
            Self::Refuse(why) => Err(String::from_utf8_lossy(&why).into_owned()),
            Self::Panic => panic!("at the disco"),
            Self::Allocate(bytes) => Ok(vec![1; bytes][bytes - 1..].to_vec()),
            Self::Fill => {
                let mut file = files.next().unwrap();
                loop {
                    file.write_all(&[1; 4096]).map_err(text)?;
                }
            }
            Self::Spin => loop {
                std::hint::spin_loop();
            },
            Self::Wait => {
                files.next().unwrap().write_all(b"x").map_err(text)?;
                loop {
                    std::thread::park();
                }
            }
            Self::Threads(count) => {
                let barrier = std::sync::Barrier::new(count);
                let work = |_| {
                    barrier.wait();
                    1
                };
                let sum = std::thread::scope(|scope| {
                    let start = |index| {
                        let thread = std::thread::Builder::new().name(format!("t{index}"));
                        thread.spawn_scoped(scope, move || work(index))
                    };
                    let threads: Result<Vec<_>, _> = (0..count).map(start).collect();
                    let Ok(threads) = threads else {
                        // The threads that were started wait for ever.
                        std::process::exit(7);
                    };
                    threads
                        .into_iter()
                        .map(|thread| thread.join().unwrap())
                        .sum::<u8>()
                });
                Ok(vec![sum])
            }
            Self::Long(bytes) => Ok(vec![0; bytes]),
            Self::Identify => {
                let variables = std::env::vars_os().count();
                assert_eq!(variables, 0);
                Ok(vec![u8::try_from(std::process::id()).unwrap_or(u8::MAX)])
            }
        }
    }
}

fn call(task: &Task, files: Vec<OwnedFd>, limits: Limits) -> Result<Vec<u8>, CallError<String>> {
    Worker::start(task, files, &limits)?.wait()
}

fn death(task: &Task, files: Vec<OwnedFd>, limits: Limits) -> Death {
    match call(task, files, limits) {
        Err(CallError::Died { death, .. }) => death,
        other => panic!("{other:?}"),
    }
}

fn a_reply_comes_back_and_files_are_written() -> Result<(), Failed> {
    let (mut from, mut to) = (tempfile::tempfile()?, tempfile::tempfile()?);
    from.write_all(b"hello")?;
    from.rewind()?;
    let limits = Limits {
        file_size: 5,
        ..Limits::default()
    };
    let files = vec![from.into(), to.try_clone()?.into()];
    assert_eq!(call(&Task::Shout, files, limits)?, b"hello");
    let mut text = String::new();
    to.rewind()?;
    to.read_to_string(&mut text)?;
    assert_eq!(text, "HELLO");
    Ok(())
}

/// A pipe ends for each side when the other is done.
fn pipes_stream_through() -> Result<(), Failed> {
    let (input, mut feed) = pipe_with(PipeFlags::CLOEXEC).map(|(r, w)| (r, File::from(w)))?;
    let (mut result, output) = pipe_with(PipeFlags::CLOEXEC).map(|(r, w)| (File::from(r), w))?;
    let worker = Worker::start(&Task::Shout, vec![input, output], &Limits::default())?;
    let bytes = vec![b'a'; 1 << 19];
    let feeder = std::thread::spawn(move || feed.write_all(&bytes));
    let mut read = Vec::new();
    result.read_to_end(&mut read)?;
    feeder.join().unwrap()?;
    assert_eq!(read, vec![b'A'; 1 << 19]);
    assert_eq!(worker.wait()?.len(), 1 << 19);
    Ok(())
}

fn an_error_of_its_own_comes_back() -> Result<(), Failed> {
    match call(
        &Task::Refuse(b"no such inode".into()),
        Vec::new(),
        Limits::default(),
    ) {
        Err(CallError::Refused(why)) => assert_eq!(why, "no such inode"),
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn a_panic_is_told() -> Result<(), Failed> {
    match death(&Task::Panic, Vec::new(), Limits::default()) {
        Death::Panicked(text) => assert!(text.contains("at the disco"), "{text}"),
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn memory_ends_at_its_limit() -> Result<(), Failed> {
    let limits = Limits {
        memory: 64 << 20,
        ..Limits::default()
    };
    assert_eq!(call(&Task::Allocate(48 << 20), Vec::new(), limits)?, [1]);
    match death(&Task::Allocate(1 << 30), Vec::new(), limits) {
        Death::Aborted(text) => assert!(text.contains("memory allocation"), "{text}"),
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn a_file_ends_at_its_limit() -> Result<(), Failed> {
    let file = tempfile::tempfile()?;
    let limits = Limits {
        file_size: 1 << 20,
        ..Limits::default()
    };
    match call(&Task::Fill, vec![file.try_clone()?.into()], limits) {
        Err(CallError::Refused(why)) => assert!(why.contains("File too large"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(file.metadata()?.len(), 1 << 20);
    Ok(())
}

fn time_ends_at_its_limit() -> Result<(), Failed> {
    let limits = Limits {
        processor_seconds: Some(1),
        ..Limits::default()
    };
    let death = death(&Task::Spin, Vec::new(), limits);
    assert_eq!(death, Death::OutOfTime);
    Ok(())
}

fn threads_are_there_and_bounded() -> Result<(), Failed> {
    let limits = Limits {
        memory: 2 << 30,
        ..Limits::default()
    };
    assert_eq!(call(&Task::Threads(8), Vec::new(), limits)?, [8]);
    match death(&Task::Threads(100), Vec::new(), limits) {
        Death::Exited(7, _) => {}
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn a_reply_that_is_too_long_is_none() -> Result<(), Failed> {
    let limits = Limits {
        reply: 1000,
        ..Limits::default()
    };
    assert_eq!(call(&Task::Long(900), Vec::new(), limits)?.len(), 900);
    assert_eq!(
        death(&Task::Long(1000), Vec::new(), limits),
        Death::BadReply
    );
    Ok(())
}

fn it_is_the_first_process_and_has_no_environment() -> Result<(), Failed> {
    // Process 1 of its namespace, where the host has them.
    assert_eq!(call(&Task::Identify, Vec::new(), Limits::default())?, [1]);
    Ok(())
}

/// Checks the kernel's status of a process: identity, capabilities, filters.
fn a_worker_has_no_identity_and_no_powers() -> Result<(), Failed> {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let worker = Worker::start(&Task::Wait, vec![theirs.into()], &Limits::default())?;
    ours.read_exact(&mut [0])?;
    let all = descendants(std::process::id());
    let jailed = all.iter().filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.contains("Seccomp:\t2").then_some((pid, status))
    });
    let jailed: Vec<_> = jailed
        .filter(|(pid, _)| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("task")
        })
        .collect();
    assert!(!jailed.is_empty(), "{all:?}");
    for (pid, status) in jailed {
        assert_eq!(fs::read(format!("/proc/{pid}/environ"))?, b"");
        for wanted in ["NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
            assert!(status.contains(wanted), "{status}");
        }
        if rustix::process::geteuid().is_root() {
            let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
            let ids = ids.unwrap().split_whitespace();
            assert!(ids.map(|id| id.parse().unwrap()).all(|id: u32| id >= 65534));
        }
        for name in ["user", "mnt", "pid", "net", "ipc"] {
            let link = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{name}"));
            assert_ne!(link(*pid)?, link(std::process::id())?, "{name}");
        }
    }
    drop(worker);
    assert_eq!(ours.read(&mut [0])?, 0);
    Ok(())
}

/// Dropping a handle leaves no process and no open file.
fn a_dropped_worker_is_gone() -> Result<(), Failed> {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let worker = Worker::start(&Task::Wait, vec![theirs.into()], &Limits::default())?;
    ours.read_exact(&mut [0])?;
    drop(worker);
    assert_eq!(ours.read(&mut [0])?, 0);
    Ok(())
}

/// Runs as the owner if this process was started to be killed.
pub fn run_if_owner() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(OWNER) {
        return;
    }
    let descriptor = arguments.next().unwrap().parse().unwrap();
    // SAFETY: the parent left it open for this.
    let file = unsafe { micabox_jail::take(descriptor) }.unwrap();
    let worker = Worker::start(&Task::Wait, vec![file], &Limits::default()).unwrap();
    let _ = worker.wait();
}

fn a_killed_owner_leaves_no_worker() -> Result<(), Failed> {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let mut owner = Command::new(std::env::current_exe()?)
        .args([OWNER, &theirs.as_raw_fd().to_string()])
        .spawn()?;
    drop(theirs);
    ours.read_exact(&mut [0])?;
    let workers = descendants(owner.id());
    assert!(!workers.is_empty());
    owner.kill()?;
    owner.wait()?;
    // The end of the stream: the other end is closed everywhere.
    assert_eq!(ours.read(&mut [0])?, 0);
    let runs = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).exists();
    wait_until("they end", || !workers.iter().any(runs));
    Ok(())
}

/// Ctrl-C is for the owner: a signal to the terminal's group doesn't reach the worker.
fn a_worker_has_a_group_of_its_own() -> Result<(), Failed> {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let _worker = Worker::start(&Task::Wait, vec![theirs.into()], &Limits::default())?;
    ours.read_exact(&mut [0])?;
    let group = rustix::process::getpgrp();
    for pid in descendants(std::process::id()) {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let pid = rustix::process::Pid::from_raw(pid.cast_signed());
        if line.contains("task") {
            assert_ne!(rustix::process::getpgid(pid)?, group);
        }
    }
    Ok(())
}

fn a_kind_that_its_program_is_not_is_an_error() -> Result<(), Failed> {
    #[derive(Serialize, Deserialize)]
    struct Stranger;
    impl Call for Stranger {
        const KIND: &'static str = "stranger";
        type Reply = ();
        type Error = String;
        fn run(self, _: Vec<OwnedFd>) -> Result<(), String> {
            Ok(())
        }
    }
    let Err(CallError::Start { kind, source }) =
        Worker::start(&Stranger, Vec::new(), &Limits::default())
    else {
        panic!("it started");
    };
    assert_eq!((kind, source.kind()), ("stranger", ErrorKind::NotFound));
    Ok(())
}

fn doctors_probe_has_an_answer() -> Result<(), Failed> {
    let walls = micabox_jail::probe()?;
    assert_eq!(walls.namespaces, Ok(()));
    Ok(())
}

macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        vec![$(Trial::test(stringify!($name), $name)),*]
    };
}

pub fn trials() -> Vec<Trial> {
    trials![
        a_reply_comes_back_and_files_are_written,
        pipes_stream_through,
        an_error_of_its_own_comes_back,
        a_panic_is_told,
        memory_ends_at_its_limit,
        a_file_ends_at_its_limit,
        time_ends_at_its_limit,
        threads_are_there_and_bounded,
        a_reply_that_is_too_long_is_none,
        it_is_the_first_process_and_has_no_environment,
        a_worker_has_no_identity_and_no_powers,
        a_dropped_worker_is_gone,
        a_killed_owner_leaves_no_worker,
        a_worker_has_a_group_of_its_own,
        a_kind_that_its_program_is_not_is_an_error,
        doctors_probe_has_an_answer,
    ]
}
