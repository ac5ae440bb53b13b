//! A container, for scale: no machine, and the host's kernel inside.

use std::path::{Path, PathBuf};
use std::process::Command;

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
        let mut command = Command::new("crun");
        // Where no control groups are set up it can't make any.
        command.args(["--cgroup-manager=disabled", "run", "--bundle"]);
        command.arg(&self.bundle).arg("measured");
        let (output, exit) = processes::watch(&mut command)?;
        let line =
            |what, seconds: f64| json!({"who": "crun run", "what": what, "seconds": seconds});
        Ok(vec![line("first", output), line("exit", exit)])
    }
}
