//! What the cases are about: a store with sandboxes of every state, a snapshot, and volumes.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use micabox::{
    Builder, Command, Error, GuestFiles, Overrides, Sandbox, SandboxRef, Sandboxes, Store,
};

use crate::support::Home;

/// The sandboxes `it` (idle), `paused`, `created` (both without a network), `stopped` (with a disk), `ended`
/// (without one) and `removed`; the snapshot `shot`; the volumes `used` and `free`.
pub struct World<'a> {
    pub home: &'a Home,
    pub sandboxes: Sandboxes,
    removed: SandboxRef,
    /// A port that is in use.
    port: TcpListener,
}

impl<'a> World<'a> {
    pub fn new(home: &'a Home) -> Self {
        let run = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            home.output(&words).ok();
        };
        run("run -d --idle --name it --upper disk:64m -v used:/used box");
        run("run -d --name paused --net none box sleep 1000");
        run("pause paused");
        run("create --name created --net none box");
        run("run --name stopped --upper disk:64m box true");
        run("run --name ended box true");
        run("create --name removed --upper disk:64m box");
        run("snapshot create stopped shot");
        run("volume create --size 32M free");
        let sandboxes = Sandboxes::open(&Store::open(&home.store()).unwrap()).unwrap();
        let removed = sandboxes.get("removed").unwrap();
        run("rm removed");
        let world = Self {
            home,
            sandboxes,
            removed,
            port: TcpListener::bind("127.0.0.1:0").unwrap(),
        };
        std::fs::write(world.file("garbage"), vec![0xa5; 100_000]).unwrap();
        let variables = format!("A={}", "\u{1}".repeat(5 << 20));
        std::fs::write(world.file("variables"), variables).unwrap();
        let shot = world.file("shot");
        run(&format!("snapshot export shot {}", shot.display()));
        world
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns the address of a port that is in use.
    pub fn port(&self) -> String {
        self.port.local_addr().unwrap().to_string()
    }

    pub fn store(&self) -> &Store {
        self.sandboxes.store()
    }

    /// Returns a sandbox; `removed` as of before it was.
    pub fn get(&self, name: &str) -> Result<SandboxRef, Error> {
        match name {
            "removed" => Ok(self.removed.clone()),
            name => self.sandboxes.get(name),
        }
    }

    /// Splits a command line. `{DIR}` stands for a directory of files, `{LONG}` for a long word,
    /// `{EVIL}` for characters that a terminal obeys, `{PORT}` for a port that is in use.
    pub fn words(&self, line: &str) -> Vec<String> {
        let directory = self.home.path().to_str().unwrap();
        let words = line.split(' ').map(|word| {
            word.replace("{DIR}", directory)
                .replace("{LONG}", &long())
                .replace("{EVIL}", EVIL)
                .replace("{PORT}", &self.port())
        });
        words.collect()
    }

    /// Returns all that could have changed.
    pub fn state(&self) -> Vec<String> {
        let lists = [
            "ps -a --no-trunc --format json",
            "snapshot ls --json",
            "volume ls -q",
            "images --json",
        ];
        let list = |line: &str| self.home.output(&line.split(' ').collect::<Vec<_>>()).ok();
        // Their ages grow, and their disks as their kernels please.
        let ages = ["Status", "RunningFor", "Size"];
        let without_ages = |text: String| {
            let parts = text
                .split(',')
                .filter(|part| !ages.iter().any(|age| part.contains(age)));
            parts.collect::<Vec<_>>().join(",")
        };
        lists.iter().map(|line| without_ages(list(line))).collect()
    }

    pub fn builder(&self) -> Builder {
        let image = self.store().image("box").unwrap();
        let guest = GuestFiles::find_for(Path::new(env!("CARGO_BIN_EXE_mica"))).unwrap();
        Sandbox::builder(self.store(), &image).guest(guest)
    }

    /// Makes a sandbox as `change` has it.
    pub fn create(&self, change: impl FnOnce(Builder) -> Builder) -> Result<(), Error> {
        change(self.builder()).create().map(drop)
    }

    /// Runs a command with the sandbox's defaults and `overrides`.
    pub fn exec(&self, name: &str, overrides: &Overrides) -> Result<(), Error> {
        let sandbox = self.get(name)?;
        let command = sandbox.command(overrides)?;
        sandbox.exec(&command).map(drop)
    }

    /// Runs a command as it is.
    pub fn run(&self, command: &Command) -> Result<(), Error> {
        self.get("it")?.exec(command).map(drop)
    }
}

/// A word longer than any name or path, and short enough to be an argument.
pub fn long() -> String {
    "x".repeat(100_000)
}

pub const EVIL: &str = "\u{1b}]0;t\u{7}\n\u{202e}";

/// Returns overrides that make a command of `args`.
pub fn args(args: &[&str]) -> Overrides {
    Overrides {
        args: args.iter().map(Into::into).collect(),
        ..Overrides::default()
    }
}
