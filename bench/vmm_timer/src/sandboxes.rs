//! Sandboxes, as `mica run` has them: from its start to a command's first output.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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

/// A start with a machine from a pool.
const POOLED: &str = "mica run, from a pool";

/// How long a machine of a pool is left alone before it is used.
const SETTLE: Duration = Duration::from_millis(300);

/// The image's name.
const IMAGE: &str = "mica-nested:latest";

/// Says something and then stays, to be looked at.
const SCRIPT: &str = "echo said; exec sleep 100000";

/// Says something and ends.
const SHORT: &str = "echo said";

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
        drop(running);
        let mut short = self.mica(&[]);
        let memory = format!("{MEMORY_MIB}m");
        short.args(words(way.flags, &memory, "short", SHORT));
        let (first, exit) = processes::watch(&mut short)?;
        let whole = |what, seconds: f64| json!({"who": way.name, "what": what, "seconds": seconds});
        Ok(vec![line, whole("first", first), whole("exit", exit)])
    }

    /// As [`Home::measure`], with a machine from a pool, once the pool is full.
    pub fn measure_pooled(&self) -> Result<Vec<Value>> {
        let memory = format!("{MEMORY_MIB}m");
        let machine = ["--memory", &memory, "--cpus", "1", "--net", "none"];
        let flags = ["pool", "-n", "1", "--backend", "kvm", "--transport", "pmem"];
        let mut pool = self.mica(&[&flags[..], &machine, &[IMAGE]].concat());
        let mut pool = Running(pool.stdout(Stdio::piped()).spawn()?);
        let stdout = pool.0.stdout.as_mut().ok_or("no stdout")?;
        stdout.read_exact(&mut [0; 6])?;
        // The guest settles after its restore.
        std::thread::sleep(SETTLE);
        let mut short = self.mica(&[]);
        short.args(words(&["--backend", "kvm"], &memory, "short", SHORT));
        let (first, exit) = processes::watch(&mut short)?;
        let whole = |what, seconds: f64| json!({"who": POOLED, "what": what, "seconds": seconds});
        Ok(vec![whole("first", first), whole("exit", exit)])
    }

    fn run(&self, flags: &[&str], name: &str) -> Result<(Running, f64)> {
        let memory = format!("{MEMORY_MIB}m");
        self.start(&words(flags, &memory, name, SCRIPT))
    }

    /// So many short commands in a sandbox that runs, each from its start to its end.
    pub fn exec(&self, rounds: usize) -> Result<Vec<Value>> {
        let (_running, _) = self.run(&["--backend", "kvm"], "running")?;
        // The guest settles after its restore.
        std::thread::sleep(SETTLE);
        processes::repeat("mica exec", rounds, || {
            self.mica(&["exec", "running", crate::SHORTEST])
        })
    }

    /// `mica fork` of a sandbox that was just started, from its start to its end; and the memory of
    /// the copy, when it is idle.
    pub fn fork(&self) -> Result<Value> {
        let (_original, _) = self.run(&["--backend", "kvm"], "original")?;
        let begun = processes::now();
        let fork = self
            .mica(&["fork", "original", "--name", "copy"])
            .output()?;
        let seconds = processes::now() - begun;
        if !fork.status.success() {
            return Err(String::from_utf8_lossy(&fork.stderr).into());
        }
        let id = String::from_utf8(fork.stdout)?;
        let record = self
            .store
            .join("sandboxes")
            .join(id.trim())
            .join("state.json");
        let record: Value = serde_json::from_slice(&std::fs::read(record)?)?;
        let owner = record["owner"]["pid"].as_u64().ok_or("no owner")?;
        std::thread::sleep(SETTLE);
        let processes = processes::tree(u32::try_from(owner)?);
        let (owner, machine) = processes.split_at(1);
        let line = json!({
            "who": "mica fork",
            "what": "exit",
            "seconds": seconds,
            "memory": processes::memory(machine),
            "owner": processes::memory(owner),
        });
        self.mica(&["rm", "--force", "copy"]).output()?;
        Ok(line)
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

/// The command line of a sandbox that runs a script.
fn words<'a>(flags: &[&'a str], memory: &'a str, name: &'a str, script: &'a str) -> Vec<&'a str> {
    let machine = ["--memory", memory, "--cpus", "1", "--net", "none"];
    let image = ["--transport", "pmem", "--pull", "never", "--name", name];
    let command = [IMAGE, "sh", "-c", script];
    [&["run", "--rm"], flags, &machine, &image, &command].concat()
}

/// What a sandbox took so far: its machine's processes, and its owner with `mica` itself.
fn line(running: &Running, who: &str, what: &str, seconds: f64) -> Value {
    let own = running.0.id();
    let machine = processes::tree(own);
    let is_owner = |pid: &&u32| **pid == own || processes::is_owner(**pid);
    let (owner, machine): (Vec<u32>, Vec<u32>) = machine.iter().partition(is_owner);
    json!({
        "who": who,
        "what": what,
        "seconds": seconds,
        "cpu": processes::cpu(&machine),
        "memory": processes::memory(&machine),
        "owner": processes::memory(&owner),
    })
}
