//! microsandbox, another microVM sandbox: its `msb exec` does what `mica exec` does.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{MEMORY_MIB, Result, SHORTEST, processes};

/// The image in `box.tar`.
const IMAGE: &str = "mica-nested:latest";

/// The programs, and a home for their state.
pub struct Microsandbox {
    program: PathBuf,
    home: PathBuf,
}

impl Microsandbox {
    /// None without its programs.
    pub fn new(files: &Path) -> Option<Self> {
        let program = files.join("msb/bin/msb");
        let home = std::env::temp_dir().join("microsandbox");
        program.is_file().then_some(Self { program, home })
    }

    /// So many short commands in a sandbox that runs, each from its start to its end.
    pub fn exec(&self, files: &Path, rounds: usize) -> Result<Vec<Value>> {
        std::fs::create_dir_all(&self.home)?;
        let archive = files.join("box.tar");
        let archive = archive.to_str().ok_or("the path is not UTF-8")?;
        let memory = format!("{MEMORY_MIB}M");
        self.run(&["load", "--input", archive])?;
        self.run(&[
            "create", "--name", "running", "--pull", "never", "--cpus", "1", "--memory", &memory,
            IMAGE,
        ])?;
        let lines = processes::repeat("msb exec", rounds, || {
            self.msb(&["exec", "running", "--", SHORTEST])
        });
        self.run(&["remove", "--force", "running"])?;
        lines
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = self.msb(words);
        // What it starts keeps these streams.
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("{command:?}: {status}").into()),
        }
    }

    fn msb(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).stdin(Stdio::null());
        command.env("HOME", &self.home);
        command
    }
}
