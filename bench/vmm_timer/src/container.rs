//! A container, for scale: no machine, and the host's kernel inside.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{Result, processes};

/// `crun` and a bundle for it.
pub struct Crun {
    bundle: PathBuf,
}

impl Crun {
    /// None without a bundle.
    pub fn new(files: &Path) -> Option<Self> {
        let bundle = files.join("bundle");
        bundle.is_dir().then_some(Self { bundle })
    }

    /// From nothing to a first output, and to the end.
    pub fn measure(&self) -> Result<Vec<Value>> {
        let mut command = crun(&["run", "--bundle"]);
        command.arg(&self.bundle).arg("measured");
        let (output, exit) = processes::watch(&mut command)?;
        let line =
            |what, seconds: f64| json!({"who": "crun run", "what": what, "seconds": seconds});
        Ok(vec![line("first", output), line("exit", exit)])
    }

    /// So many short commands in a container that runs, each from its start to its end.
    pub fn exec(&self, rounds: usize) -> Result<Vec<Value>> {
        let mut start = crun(&["run", "--detach", "--config"]);
        start.arg(self.bundle.join("stay.json"));
        start.arg("--bundle").arg(&self.bundle).arg("running");
        // The container keeps these streams.
        for set in [Command::stdin, Command::stdout, Command::stderr] {
            set(&mut start, Stdio::null());
        }
        if !start.status()?.success() {
            return Err("crun run --detach failed".into());
        }
        let exec = || crun(&["exec", "running", crate::SHORTEST]);
        let lines = processes::repeat("crun exec", rounds, exec);
        crun(&["delete", "--force", "running"]).status()?;
        lines
    }
}

fn crun(words: &[&str]) -> Command {
    let mut command = Command::new("crun");
    // Where no control groups are set up it can't make any.
    command.arg("--cgroup-manager=disabled").args(words);
    command
}
