//! The `mica` command.
//!
//! A module uses those of lower rows only:
//!
//! | modules | job |
//! |---|---|
//! | this one | the command line, and which command runs |
//! | `commands` | a command in each file, but for those below |
//! | `run` | `mica run`: its own flags, and how mica attends to a command, which other commands do as well |
//! | `serve` | `mica serve --stdio`, for SDKs |
//! | `schema` | messages of `serve` and of owners, for the protocol's page |
//! | `server` | how mica becomes `mica-server`, for clients of other protocols |
//! | `flags` | flags as their users write them |
//! | `document`, `moment`, `synonyms`, `template` | words of command lines |
//!
//! Failures, output, log and settings are in `crates/program`, from options to a sandbox it is `crates/creation`.

#![warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro)] // see clippy.toml

mod commands;
mod document;
mod flags;
mod moment;
mod run;
#[cfg(feature = "manual")]
pub mod schema;
mod serve;
mod server;
mod synonyms;
mod template;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use micabox_program::failure::EXIT_MICA;
use micabox_program::usage::{self, EXIT_USAGE};
use micabox_program::{limits, log, report, serving, umask};

/// Run commands from OCI images, each in a virtual machine of its own.
///
/// An image is pulled once, kept as one filesystem a layer, and given to machines
/// without copying it. A machine's changes are gone when it ends, unless they are on a disk.
#[derive(Debug, Parser)]
#[command(
    name = "mica",
    version,
    max_term_width = 100,
    after_help = "Images, layers and records of sandboxes are kept in $MICABOX_HOME, \
                  otherwise in micabox below the XDG data directory.\n\
                  `mica doctor` shows what this machine supports."
)]
struct Cli {
    #[command(flatten)]
    log: log::Flag,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Create(Box<commands::create::Args>),
    Ps(commands::ps::Args),
    Start(commands::start::Args),
    Stop(commands::stop::Args),
    Restart(commands::restart::Args),
    Pause(commands::pause::PauseArgs),
    Unpause(commands::pause::UnpauseArgs),
    Stats(commands::stats::Args),
    Metrics(commands::metrics::Args),
    Events(commands::events::Args),
    Rename(commands::rename::Args),
    Port(commands::port::Args),
    Exec(Box<commands::exec::Args>),
    Attach(commands::attach::Args),
    Wait(commands::wait::Args),
    Top(commands::top::Args),
    Kill(commands::kill::Args),
    Update(commands::update::Args),
    Logs(commands::logs::Args),
    Rm(commands::rm::Args),
    Cp(commands::cp::Args),
    Diff(commands::diff::Args),
    Commit(commands::commit::Args),
    Snapshot(commands::snapshot::Args),
    Volume(commands::volume::Args),
    Fork(commands::fork::Args),
    Pool(commands::pool::Args),
    Pull(commands::pull::Args),
    Load(commands::load::Args),
    Save(commands::save::Args),
    Push(commands::push::Args),
    Convert(commands::convert::Args),
    Tag(commands::tag::Args),
    Images(commands::images::Args),
    History(commands::history::Args),
    Inspect(commands::inspect::Args),
    Rmi(commands::rmi::Args),
    Store(commands::store::Args),
    Mount(commands::mount::Args),
    Umount(commands::umount::Args),
    Memfs(commands::memfs::Args),
    Ext4(commands::ext4::Args),
    Doctor(commands::doctor::Args),
    Info(commands::info::Args),
    Version(commands::version::Args),
    Login(commands::login::Args),
    Logout(commands::logout::Args),
    Serve(serving::ServeArgs),
    Mcp(serving::McpArgs),
}

/// The limit on descriptors that this process sets, where it may: each of a sandbox's connections
/// is one, and most shells allow 1024. With so many, all places of its network can be taken.
const DESCRIPTORS: u64 = 16384;

/// The command line of `mica run` alone. To define all commands takes longer than everything else
/// that `mica run` does itself.
#[derive(Debug, Parser)]
#[command(name = "mica", max_term_width = 100, disable_help_subcommand = true)]
struct RunOnly {
    #[command(flatten)]
    log: log::Flag,

    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    Run(Box<run::Args>),
}

/// The same for `mica exec`.
#[derive(Debug, Parser)]
#[command(name = "mica", max_term_width = 100, disable_help_subcommand = true)]
struct ExecOnly {
    #[command(flatten)]
    log: log::Flag,

    #[command(subcommand)]
    command: ExecCommand,
}

#[derive(Debug, Subcommand)]
enum ExecCommand {
    Exec(Box<commands::exec::Args>),
}

fn parse(words: Vec<OsString>) -> Result<Cli, clap::Error> {
    match words.get(1) {
        Some(word) if word == "run" => {
            let RunOnly { log, command } = flags::parse(words)?;
            let RunCommand::Run(args) = command;
            let command = Command::Run(args);
            Ok(Cli { log, command })
        }
        Some(word) if word == "exec" => {
            let ExecOnly { log, command } = flags::parse(words)?;
            let ExecCommand::Exec(args) = command;
            let command = Command::Exec(args);
            Ok(Cli { log, command })
        }
        _ => flags::parse(words),
    }
}

/// Returns the definition of all commands and their options, for man pages and completions.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs `mica`.
pub fn main() -> ExitCode {
    // Owners, machines and parsers are processes of this program, without mica's command line.
    micabox::run_if_worker_with(log::start_in_owner);
    umask::set_ours();
    limits::outlive_file_limit();
    limits::raise_descriptor_limit(DESCRIPTORS);
    report::end_with_server();
    let words = synonyms::resolve(std::env::args_os().collect());
    if let Some(failure) = synonyms::refusal(&words) {
        failure.print();
        return ExitCode::from(EXIT_USAGE);
    }
    let command = words.get(1).cloned();
    let cli = match parse(words) {
        Ok(cli) => cli,
        Err(error) => return refuse(&usage::without_guesses(error), command.as_deref()),
    };
    if let Err(failure) = log::start(cli.log) {
        failure.print();
        return ExitCode::from(match cli.command {
            Command::Run(_) | Command::Exec(_) | Command::Create(_) => EXIT_MICA,
            _ => EXIT_USAGE,
        });
    }
    let result = match cli.command {
        Command::Run(args) => run::execute(*args),
        Command::Ps(args) => commands::ps::execute(&args),
        Command::Start(args) => commands::start::execute(&args),
        Command::Create(args) => commands::create::execute(&args),
        Command::Restart(args) => commands::restart::execute(&args),
        Command::Pause(args) => commands::pause::pause(&args),
        Command::Unpause(args) => commands::pause::unpause(&args),
        Command::Stats(args) => commands::stats::execute(&args),
        Command::Metrics(args) => commands::metrics::execute(&args),
        Command::Events(args) => commands::events::execute(&args),
        Command::Rename(args) => commands::rename::execute(&args),
        Command::Port(args) => commands::port::execute(&args),
        Command::Stop(args) => commands::stop::execute(&args),
        Command::Exec(args) => commands::exec::execute(*args),
        Command::Attach(args) => commands::attach::execute(&args),
        Command::Top(args) => commands::top::execute(&args),
        Command::Wait(args) => commands::wait::execute(&args),
        Command::Update(args) => commands::update::execute(&args),
        Command::Kill(args) => commands::kill::execute(&args),
        Command::Logs(args) => commands::logs::execute(&args),
        Command::Rm(args) => commands::rm::execute(&args),
        Command::Cp(args) => commands::cp::execute(&args),
        Command::Diff(args) => commands::diff::execute(&args),
        Command::Commit(args) => commands::commit::execute(&args),
        Command::Snapshot(args) => commands::snapshot::execute(&args),
        Command::Volume(args) => commands::volume::execute(&args),
        Command::Fork(args) => commands::fork::execute(&args),
        Command::Pool(args) => commands::pool::execute(&args),
        Command::Pull(args) => commands::pull::execute(args),
        Command::Load(args) => commands::load::execute(&args),
        Command::Save(args) => commands::save::execute(&args),
        Command::Push(args) => commands::push::execute(&args),
        Command::Convert(args) => commands::convert::execute(&args),
        Command::Tag(args) => commands::tag::execute(&args),
        Command::Images(args) => commands::images::execute(&args),
        Command::History(args) => commands::history::execute(&args),
        Command::Inspect(args) => commands::inspect::execute(&args),
        Command::Rmi(args) => commands::rmi::execute(&args),
        Command::Store(args) => commands::store::execute(&args),
        Command::Mount(args) => commands::mount::execute(&args),
        Command::Umount(args) => commands::umount::execute(&args),
        Command::Memfs(args) => commands::memfs::execute(&args),
        Command::Ext4(args) => commands::ext4::execute(&args),
        Command::Doctor(args) => commands::doctor::execute(&args),
        Command::Info(args) => commands::info::execute(&args),
        Command::Version(args) => commands::version::execute(&args),
        Command::Login(args) => commands::login::execute(&args),
        Command::Logout(args) => commands::logout::execute(&args),
        Command::Serve(args) if args.is_e2b => server::become_it(),
        Command::Serve(_) => serve::execute(),
        Command::Mcp(_) => server::become_it(),
    };
    micabox_program::end(result)
}

/// Prints help, a version, or the error of a wrong command line. For `run`, the exit code then differs from the command's
/// own ones.
fn refuse(error: &clap::Error, command: Option<&OsStr>) -> ExitCode {
    let is = |names: &[&str]| names.iter().any(|name| command == Some(name.as_ref()));
    let message = flags::refusal(error).filter(|_| is(&["run", "create"]));
    let code = if is(&["run", "exec", "create"]) {
        EXIT_MICA
    } else {
        EXIT_USAGE
    };
    usage::refuse(error, message, code)
}
