//! The program `mica-mcp`, beside `mica`. The protocol and its schemas are a seventh of it, and would cost every
//! process of mica a twentieth more page faults: a sandbox is several.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::Args;
use crate::failure::Failure;
use crate::{Outcome, log};

/// Its name.
const NAME: &str = "mica-mcp";

/// Executes it in place of this process.
pub fn become_it(_args: &Args) -> Outcome {
    let here = std::env::current_exe().map_err(|error| Failure::of(&error))?;
    let program = here.with_file_name(NAME);
    let mut command = Command::new(&program);
    if let Some(filter) = log::filter() {
        command.env(log::VARIABLE, filter);
    }
    let error = command.exec();
    Err(Failure::of(&error)
        .context(&format!("executing {}", program.display()))
        .hint("install it beside mica"))
}
