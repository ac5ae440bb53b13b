#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro)] // see clippy.toml

mod e2b;
mod mcp;
mod replica;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use micabox_program::failure::Outcome;
use micabox_program::serving::{McpArgs, ServeArgs};
use micabox_program::usage::{EXIT_USAGE, refuse};
use micabox_program::{end, limits, log, umask};

pub use e2b::fuzzing;

/// The limit on descriptors that this process sets, where it may: connections of clients, those to owners of
/// sandboxes, and files of layers.
const DESCRIPTORS: u64 = 16 << 10;

/// The command line: that of `mica`, for these commands.
#[derive(Debug, Parser)]
#[command(name = "mica", max_term_width = 100, disable_help_subcommand = true)]
struct Line {
    #[command(flatten)]
    log: log::Flag,

    #[command(subcommand)]
    command: Command,
}

/// What is served.
#[derive(Debug, Subcommand)]
enum Command {
    Serve(ServeArgs),
    Mcp(McpArgs),
    Store(replica::Line),
}

/// Runs `mica-server`.
pub fn main() -> ExitCode {
    micabox::run_if_worker_with(log::start_in_owner);
    umask::set_ours();
    limits::raise_descriptor_limit(DESCRIPTORS);
    match Line::try_parse() {
        Ok(line) => end(log::start(line.log).and_then(|()| serve(line.command))),
        Err(error) => refuse(&error, None, EXIT_USAGE),
    }
}

fn serve(command: Command) -> Outcome {
    match command {
        Command::Serve(args) => e2b::execute(args.e2b),
        Command::Mcp(args) => mcp::execute(args),
        Command::Store(line) => replica::execute(line),
    }
}
