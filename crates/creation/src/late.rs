//! What a machine that continues where it was can't be given any more.

use micabox::{Error, ErrorKind};
use micabox_spec::options::{Late, SandboxOptions, Whose};

use micabox_program::failure::Failure;

/// Checks that no flag asks for what a restored machine can't be given any more.
pub fn check_fit_for_memory(options: &SandboxOptions, snapshot: &str) -> Result<(), Failure> {
    match options.late(Whose::Machine) {
        None => Ok(()),
        Some(Late::Flag(flag)) => Err(Failure::of_kind(
            ErrorKind::Unsupported,
            format!("the snapshot has a machine's memory, so {flag} comes too late"),
        )
        .hint(format!("leave {flag} out, or start from an image"))),
        Some(Late::Differs(problem)) => Err(Error::SnapshotDiffers {
            name: snapshot.to_owned(),
            problem,
        }
        .into()),
    }
}

/// Checks that no flag is about the commands of a restored machine, which are what they were.
pub fn check_fit_for_commands(options: &SandboxOptions, snapshot: &str) -> Result<(), Failure> {
    match options.late(Whose::Commands) {
        Some(Late::Flag(flag)) => Err(Failure::of_kind(
            ErrorKind::Unsupported,
            format!("the snapshot {snapshot} has a machine's memory, so {flag} comes too late"),
        )
        .hint("give it to each command")),
        None | Some(Late::Differs(_)) => Ok(()),
    }
}
