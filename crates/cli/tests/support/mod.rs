//! A store with a small image, and `mica` on it.

#![allow(dead_code, reason = "each of two programs uses a part of it")]

pub mod artifact;
pub mod e2b;
pub mod exec;
pub mod full;
pub mod host;
pub mod lazy;
pub mod packed;
pub mod share;
pub mod snapshot;
pub mod trees;
pub mod upper;
pub mod verity;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;

use micabox_image::convert::Place;
use micabox_image::{LoadOptions, Settings, Store, progress};
pub use micabox_testing::{PATIENCE, exists, image, wait, wait_until, wait_until_none};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A test's own store, with the image `box`.
pub struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    /// Makes an empty store.
    pub fn empty() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// Makes a store with the image `box`.
    pub fn new() -> Self {
        let home = Self::empty();
        home.load(&image::layers(), &image::config());
        home
    }

    /// Loads an image of these layers under the name `box`.
    pub fn load(&self, layers: &[Vec<u8>], config: &serde_json::Value) {
        let archive = self.directory.path().join("box.tar");
        image::write_archive(&archive, layers, config);
        let store = Store::open(&self.store()).unwrap();
        let options = LoadOptions {
            platform: None,
            // The test program can't be executed as a worker.
            settings: Arc::new(Settings {
                conversion: Place::Here,
                ..Settings::default()
            }),
        };
        micabox_image::load(&store, &archive, None, &options, &progress::Silent).unwrap();
        fs::remove_file(archive).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Returns a `mica` with arguments.
    pub fn mica(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mica"));
        command
            .args(arguments)
            .env("MICABOX_HOME", self.store())
            .env("MICABOX_CONFIG", "/dev/null")
            .stdin(Stdio::null());
        command
    }

    /// Runs `mica` until its end.
    pub fn output(&self, arguments: &[&str]) -> Finished {
        Finished::of(self.mica(arguments))
    }

    /// Runs `mica` with a guest whose kernel has no device mapper.
    pub fn output_without_mapper(&self, arguments: &[&str]) -> Finished {
        let mut mica = self.mica(arguments);
        mica.env("MICABOX_CMDLINE", "initcall_blacklist=dm_init");
        Finished(mica.output().unwrap())
    }

    /// Starts `mica` with its stdout in a pipe.
    pub fn start(&self, arguments: &[&str]) -> Running {
        Running::new(self.mica(arguments))
    }

    /// Returns the directory of the sandbox of this name.
    pub fn directory_of(&self, name: &str) -> PathBuf {
        let list = self.output(&["ps", "-a", "--json"]).json();
        let list = list.as_array().unwrap();
        let sandbox = list.iter().find(|sandbox| sandbox["name"] == name).unwrap();
        let id = sandbox["id"].as_str().unwrap();
        self.store().join("sandboxes").join(id)
    }

    /// Returns the PID of the owner of the only sandbox.
    pub fn owner(&self) -> u32 {
        let mut sandboxes = self.sandboxes();
        let held = self.held_images();
        sandboxes.retain(|path| !held.contains(path));
        let [sandbox] = sandboxes.try_into().unwrap();
        let record = fs::read(sandbox.join("state.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        record["owner"]["pid"].as_u64().unwrap().try_into().unwrap()
    }

    /// Kills the owner of the only sandbox, and waits until it has ended. Its machine may end before it: a
    /// killed process ends thread by thread, and the machine is killed with the thread that started it.
    pub fn kill_owner(&self) {
        let pid = Pid::from_raw(self.owner().cast_signed()).unwrap();
        let owner = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        pidfd_send_signal(&owner, Signal::KILL).unwrap();
        let mut ended = [PollFd::new(&owner, PollFlags::IN)];
        poll(&mut ended, None).unwrap();
    }

    /// Lists the files in the directory of the sandbox of this name.
    pub fn files_of(&self, name: &str) -> Vec<String> {
        let entries = fs::read_dir(self.directory_of(name)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Returns the directories of sandboxes.
    pub fn sandboxes(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.store().join("sandboxes")) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns the directories of images that are mounted for containers.
    pub fn held_images(&self) -> Vec<PathBuf> {
        let mut all = self.sandboxes();
        all.retain(|path| path.to_str().unwrap().contains("/lower-"));
        all
    }

    /// Returns the processes that this name is shown for, and that belong to this store: they have a file
    /// of it open.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        let store = self.store();
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let process = entry.ok()?.path();
            let line = fs::read(process.join("cmdline")).ok()?;
            if line.split(|byte| *byte == 0).next()? != name.as_bytes() {
                return None;
            }
            let open = fs::read_dir(process.join("fd")).ok()?.flatten();
            let mut files = open.filter_map(|link| fs::read_link(link.path()).ok());
            files.find(|file| file.starts_with(&store))?;
            process.file_name()?.to_str()?.parse().ok()
        });
        processes.collect()
    }

    /// Returns the QEMU processes that have a file of the store open, as every machine here does.
    pub fn machines(&self) -> Vec<u32> {
        let store = self.store();
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let process = entry.ok()?.path();
            let line = fs::read(process.join("cmdline")).ok()?;
            let name = b"-name\0mica-";
            if !line.windows(name.len()).any(|window| window == name) {
                return None;
            }
            let open = fs::read_dir(process.join("fd")).ok()?.flatten();
            let mut files = open.filter_map(|link| fs::read_link(link.path()).ok());
            files.find(|file| file.starts_with(&store))?;
            process.file_name()?.to_str()?.parse().ok()
        });
        processes.collect()
    }

    /// Waits until no machine is left: a killed one takes a moment to exit.
    pub fn wait_for_no_machine(&self) {
        wait_until_none("machines", || self.machines());
    }

    /// Fails unless nothing is left of any sandbox.
    pub fn assert_nothing_left(&self) {
        // A machine is taken apart after its `mica run` has returned.
        self.wait_for_no_machine();
        // So is what holds an image for containers.
        wait_until_none("holders of images", || {
            // Those of layers, of trees, and a directory alone if its process was killed.
            let names = ["mica-layers", "mica-lower", "mica-memory"].into_iter();
            let processes = names.map(|name| (name, self.processes(name)));
            let processes: Vec<_> = processes.collect();
            let held = self.held_images().into_iter();
            held.map(|held| (held, processes.clone())).collect()
        });
        assert_eq!(self.sandboxes(), [""; 0].map(PathBuf::from));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let path = self.store();
        assert!(!mounts.contains(path.to_str().unwrap()), "{mounts}");
    }
}

/// A client that keeps a sandbox's machine frozen, as for a copy of its disk, until it is dropped.
/// It sends no other requests, and implements the protocol from its page alone.
pub struct Holding(UnixStream);

impl Holding {
    pub fn new(home: &Home, name: &str) -> Self {
        // A socket's path may be too long.
        let directory = fs::File::open(home.directory_of(name)).unwrap();
        let path = format!("/proc/self/fd/{}/control", directory.as_raw_fd());
        let mut holding = Self(UnixStream::connect(path).unwrap());
        let mut preamble = [0; 12];
        holding.0.read_exact(&mut preamble).unwrap();
        assert!(preamble.starts_with(b"MICAOWN\n"));
        let request = br#"{"type":"freeze"}"#;
        let mut bytes = preamble.to_vec();
        bytes.extend((request.len() as u32 + 5).to_le_bytes());
        bytes.push(0);
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(request);
        holding.0.write_all(&bytes).unwrap();
        assert_eq!(holding.answer()["type"], "frozen");
        holding
    }

    fn answer(&mut self) -> serde_json::Value {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = [0; 9];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[4..], [0, 7, 0, 0, 0]);
        let length = u32::from_le_bytes(*head.first_chunk().unwrap());
        let mut message = vec![0; length as usize - 5];
        self.0.read_exact(&mut message).unwrap();
        serde_json::from_slice(&message).unwrap()
    }

    /// Waits until the sandbox's owner has ended the freeze. Returns the kind of failure.
    pub fn wait_for_end(mut self) -> String {
        let answer = self.answer();
        assert_eq!(answer["type"], "failed");
        answer["kind"].as_str().unwrap().to_owned()
    }
}

/// The result of a finished `mica`.
pub struct Finished(Output);

impl Finished {
    /// Runs a `mica` until its end.
    pub fn of(mut command: Command) -> Self {
        Self(command.output().unwrap())
    }

    pub fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// Replaces the text of stderr.
    pub fn replace(mut self, change: impl Fn(&str) -> String) -> Self {
        self.0.stderr = change(&self.stderr()).into_bytes();
        self
    }

    /// Returns stdout of a run that succeeded with an empty stderr.
    #[track_caller]
    pub fn ok(&self) -> String {
        assert_eq!(
            (self.code(), self.stderr().as_str()),
            (0, ""),
            "{}",
            self.stdout()
        );
        self.stdout()
    }

    /// Parses stdout as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// A running `mica`.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    pub fn new(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the next line of its stdout, without the line feed.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns whether it has a Unix connection.
    pub fn is_connected(&self) -> bool {
        const CONNECTED: &str = "03";
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        let connected: Vec<String> = sockets
            .lines()
            .map(|line| line.split_whitespace().collect())
            .filter(|fields: &Vec<_>| fields.get(5) == Some(&CONNECTED))
            .map(|fields| format!("socket:[{}]", fields[6]))
            .collect();
        let files = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|link| connected.iter().any(|socket| link == Path::new(socket)))
    }

    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_raw(self.child.id().cast_signed()).unwrap();
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Takes our end of its stdin, if that is a pipe.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Returns whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Closes our end of its stdout.
    pub fn close(self) -> Child {
        self.child
    }

    /// Waits for its end. Returns the exit code, or minus the signal.
    pub fn wait(mut self) -> i32 {
        wait(&mut self.child)
    }
}

/// Fails unless e2fsck finds no problems on a disk that was cleanly unmounted.
#[track_caller]
pub fn assert_clean(disk: &Path) {
    let fsck = Command::new("e2fsck")
        .arg("-fn")
        .arg(disk)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&fsck.stdout).into_owned();
    assert!(fsck.status.success() && !text.contains("recover"), "{text}");
}

/// Waits until no process has the file open: a killed machine closes its files after it has
/// lost its command line.
pub fn wait_until_closed(file: &Path) {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    wait_until("nobody has the file", || {
        let processes = entries("/proc".into());
        let threads = processes.flat_map(|process| entries(process.path().join("task")));
        let mut files = threads.flat_map(|thread| entries(thread.path().join("fd")));
        !files.any(|open| fs::read_link(open.path()).is_ok_and(|path| path == file))
    });
}
