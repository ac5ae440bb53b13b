//! `mica ext4`: works on filesystems in files, without mounting them. Workers in the jail read
//! them.

mod cat;
mod check;
mod cp;
mod export;
mod file;
mod import;
mod ls;
mod mkfs;
mod mode;
mod replay;
mod resize;
mod stat;

use micabox_program::failure::Outcome;

/// Make, read, change and check ext4 filesystems in files
///
/// Needs neither root nor a mount. A dirty journal is replayed: in memory by commands that only
/// read, on disk by those that write.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Mkfs(mkfs::Args),
    Check(check::Args),
    Replay(replay::Args),
    Resize(resize::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Cp(cp::Args),
    Import(import::Args),
    Export(export::Args),
}

/// Runs a subcommand.
pub fn execute(args: &Args) -> Outcome {
    match &args.command {
        Command::Mkfs(args) => mkfs::execute(args),
        Command::Check(args) => check::execute(args),
        Command::Replay(args) => replay::execute(args),
        Command::Resize(args) => resize::execute(args),
        Command::Ls(args) => ls::execute(args),
        Command::Cat(args) => cat::execute(args),
        Command::Stat(args) => stat::execute(args),
        Command::Cp(args) => cp::execute(args),
        Command::Import(args) => import::execute(args),
        Command::Export(args) => export::execute(args),
    }
}
