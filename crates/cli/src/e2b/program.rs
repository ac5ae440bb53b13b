//! The program `mica-e2b`, beside `mica`: a server of HTTP, which no other process of mica needs.

use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Parser;

use crate::failure::Failure;
use crate::{Outcome, log, serve};

/// Its name.
const NAME: &str = "mica-e2b";

/// The command line, that of `mica serve`.
#[derive(Debug, Parser)]
#[command(name = "mica serve", max_term_width = 100)]
pub struct Line {
    #[command(flatten)]
    pub log: log::Flag,

    #[command(flatten)]
    pub args: serve::Args,
}

/// Executes it in place of this process, with this process's words.
pub fn become_it() -> Outcome {
    let here = std::env::current_exe().map_err(|error| Failure::of(&error))?;
    let program = here.with_file_name(NAME);
    let mut command = Command::new(&program);
    let words = std::env::args_os().skip_while(|word| word != "serve");
    command.args(words.skip(1));
    if let Some(filter) = log::filter() {
        command.env(log::VARIABLE, filter);
    }
    let error = command.exec();
    Err(Failure::of(&error)
        .context(&format!("executing {}", program.display()))
        .hint("install it beside mica"))
}
