//! The program `mica-server`, beside `mica`: `mica mcp`, `mica serve --e2b` and `mica store serve`. Their protocols are a good part of
//! it, and would cost every process of mica a twentieth more page faults: a sandbox is several.

use std::os::unix::process::CommandExt;

use clap::{Parser, Subcommand};

use crate::commands::store;
use crate::failure::Failure;
use crate::{Outcome, e2b, log, mcp, serve};

/// Its name.
const NAME: &str = "mica-server";

/// The command line: that of `mica`, for these commands.
#[derive(Debug, Parser)]
#[command(name = "mica", max_term_width = 100, disable_help_subcommand = true)]
pub struct Line {
    #[command(flatten)]
    pub log: log::Flag,

    #[command(subcommand)]
    pub command: Command,
}

/// What is served.
#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(serve::Args),
    Mcp(mcp::Args),
    Store(store::serve::Line),
}

/// Executes it in place of this process, with this process's words.
pub fn become_it() -> Outcome {
    let here = std::env::current_exe().map_err(|error| Failure::of(&error))?;
    let program = here.with_file_name(NAME);
    let error = std::process::Command::new(&program)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(Failure::of(&error)
        .context(&format!("executing {}", program.display()))
        .hint("install it beside mica"))
}

/// Serves, in this program.
pub fn execute(command: Command) -> Outcome {
    match command {
        Command::Serve(args) => e2b::execute(args.e2b),
        Command::Mcp(args) => mcp::execute(args),
        Command::Store(line) => store::serve::execute(line),
    }
}
