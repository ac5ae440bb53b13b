//! Sandboxes, as `mica run` has them: from its start to a command's first output.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::{MEMORY_MIB, Result, processes};

/// A way to start a sandbox.
pub struct Way {
    name: &'static str,
    flags: &'static [&'static str],
}

/// All of them. The last goes on from a machine that was saved when it had booted, which the
/// first that starts in this way leaves behind.
pub const WAYS: [Way; 3] = [
    Way {
        name: "mica run --cold",
        flags: &["--backend", "kvm", "--cold"],
    },
    Way {
        name: "mica run --backend qemu",
        flags: &["--backend", "qemu"],
    },
    Way {
        name: "mica run",
        flags: &["--backend", "kvm"],
    },
];

/// The image's name.
const IMAGE: &str = "mica-nested:latest";

/// Says something and then stays, to be looked at.
const SCRIPT: &str = "echo said; exec sleep 100000";

/// A store with an image in it.
pub struct Home {
    mica: PathBuf,
    guest: PathBuf,
    store: PathBuf,
}

/// A `mica` that runs; ends when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = self.0.id().cast_signed();
        // SAFETY: takes integers only.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

impl Home {
    /// Makes the store.
    pub fn new(files: &Path) -> Result<Self> {
        let home = Self {
            mica: files.join("mica"),
            guest: files.join("guest"),
            store: files.join("store"),
        };
        let load = home.mica(&["load"]).arg(files.join("box.tar")).output()?;
        if !load.status.success() {
            return Err(String::from_utf8_lossy(&load.stderr).into());
        }
        Ok(home)
    }

    fn mica(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.mica);
        command
            .args(words)
            .env("MICABOX_HOME", &self.store)
            .env("MICABOX_GUEST", &self.guest)
            .env("MICABOX_CONFIG", "/dev/null")
            .env_remove("MICABOX_WORKER")
            .stdin(Stdio::null());
        command
    }

    /// Starts a sandbox and waits for its first output: seconds.
    fn start(&self, words: &[&str]) -> Result<(Running, f64)> {
        let mut command = self.mica(words);
        let begun = processes::now();
        let mut running = Running(command.stdout(Stdio::piped()).spawn()?);
        let mut said = [0; 4];
        let stdout = running.0.stdout.as_mut().ok_or("no stdout")?;
        stdout.read_exact(&mut said)?;
        Ok((running, processes::now() - begun))
    }

    /// From nothing to a first output.
    pub fn measure(&self, way: &Way) -> Result<Vec<Value>> {
        let others = processes::machines()?;
        let (running, seconds) = self.run(way.flags, "measured")?;
        let mut line = line(&running, way.name, "output", seconds);
        line["counters"] = processes::counters(&others)?;
        Ok(vec![line])
    }

    fn run(&self, flags: &[&str], name: &str) -> Result<(Running, f64)> {
        let memory = format!("{MEMORY_MIB}m");
        let machine = ["--memory", &memory, "--cpus", "1", "--net", "none"];
        let image = ["--transport", "pmem", "--pull", "never", "--name", name];
        let command = [IMAGE, "sh", "-c", SCRIPT];
        self.start(&[&["run", "--rm"], flags, &machine, &image, &command].concat())
    }

    /// Copies of one sandbox that was just started, one after the other; all of them stay.
    pub fn forks(&self, count: usize) -> Result<Vec<Value>> {
        let (original, seconds) = self.run(WAYS[0].flags, "original")?;
        let mut boot = line(&original, "boot", "output", seconds);
        boot["forks"] = count.into();
        let create = ["snapshot", "create", "--memory", "original", "past"];
        let create = self.mica(&create).output()?;
        if !create.status.success() {
            return Err(String::from_utf8_lossy(&create.stderr).into());
        }
        let mut copies = Vec::with_capacity(count);
        for _ in 0..count {
            let words = ["run", "--rm", "--from", "past", "sh", "-c", SCRIPT];
            copies.push(self.start(&words)?);
        }
        let mut lines = vec![boot];
        for (copy, seconds) in &copies {
            let mut found = line(copy, "fork", "output", *seconds);
            found["forks"] = count.into();
            lines.push(found);
        }
        drop(copies);
        self.mica(&["snapshot", "rm", "past"]).output()?;
        Ok(lines)
    }
}

/// What a sandbox took so far: its machine's processes, and `mica` itself.
fn line(running: &Running, who: &str, what: &str, seconds: f64) -> Value {
    let own = running.0.id();
    let machine = processes::tree(own);
    let (owner, machine): (Vec<u32>, Vec<u32>) = machine.iter().partition(|pid| **pid == own);
    json!({
        "who": who,
        "what": what,
        "seconds": seconds,
        "cpu": processes::cpu(&machine),
        "memory": processes::memory(&machine),
        "owner": processes::memory(&owner),
    })
}
