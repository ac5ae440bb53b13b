//! How fast the host is.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{Result, processes};

/// How often a program is run to learn how fast it is.
const RUNS: usize = 20;

/// CPU seconds that `mica --version` takes. Much of them is the kernel's, as of a machine's
/// start.
pub fn rate(files: &Path) -> Result<Value> {
    let mut runs = Vec::new();
    // The first one is not counted.
    for _ in 0..=RUNS {
        let before = processes::ended()?;
        let mut mica = Command::new(files.join("mica"));
        mica.arg("--version").stdout(Stdio::null()).status()?;
        runs.push(processes::ended()? - before);
    }
    runs.remove(0);
    runs.sort_by(f64::total_cmp);
    Ok(json!({"what": "rate", "who": "mica --version", "seconds": runs[RUNS / 2]}))
}
