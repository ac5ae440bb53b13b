//! `mica logout`

use micabox_transfer::LoginFile;

use super::login::registry;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::print;

/// Log out of a registry: forget the password that `mica login` or `docker login` has kept
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The registry: HOST or HOST:PORT
    #[arg(value_name = "REGISTRY", default_value = "docker.io", value_parser = registry)]
    registry: String,
}

/// Forgets a password.
pub fn execute(args: &Args) -> Outcome {
    let registry = &args.registry;
    let file = LoginFile::from_environment().map_err(|error| Failure::of(&error))?;
    let forgotten = file
        .forget(registry)
        .map_err(|error| Failure::of(&error).context(&format!("cannot log out of {registry}")))?;
    print(&if forgotten {
        format!("Removed the login of {registry}\n")
    } else {
        format!("Not logged in to {registry}\n")
    })?;
    Ok(0)
}
