//! Arguments that several commands have.

use std::time::Duration;

use micabox::{Error, SandboxRef};

use super::for_each;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::write_stderr;
use micabox_program::settings;

/// The sandboxes that a command is about.
#[derive(Clone, Debug, clap::Args)]
pub struct Named {
    /// Names or IDs
    #[arg(required = true, value_name = "SANDBOX")]
    pub sandboxes: Vec<String>,
}

/// How long a sandbox may take to stop.
#[derive(Debug, clap::Args)]
pub struct Grace {
    /// Seconds between the stop signal and the end
    #[arg(
        short,
        long,
        alias = "timeout",
        value_name = "SECONDS",
        default_value = "10"
    )]
    time: u64,
}

impl Named {
    /// Applies `action` to each sandbox and prints its name; continues after a failure, as Docker does.
    pub fn each(&self, mut action: impl FnMut(&SandboxRef) -> Result<(), Failure>) -> Outcome {
        let sandboxes = settings::sandboxes(&settings::store()?)?;
        for_each(&self.sandboxes, |name| {
            action(&sandboxes.get(name)?)?;
            Ok(name.to_owned())
        })
    }
}

/// Makes the failure of a request to a sandbox's owner, which does not know the name that the user has for it.
pub fn refused(sandbox: &SandboxRef, error: Error) -> Failure {
    let why = match &error {
        Error::Refused { message, .. } => message.clone(),
        Error::Paused => error.to_string(),
        _ => return error.into(),
    };
    let name = &sandbox.record().name;
    Failure::from(error).with_message(match why.strip_prefix("the sandbox ") {
        Some(why) => format!("sandbox {name} {why}"),
        None => format!("sandbox {name}: {why}"),
    })
}

impl Grace {
    /// Stops a sandbox, and says so if it had to be killed.
    pub fn stop(&self, sandbox: &SandboxRef) -> Result<(), Failure> {
        if let Some(why) = sandbox.stop(Duration::from_secs(self.time))?.killed {
            let name = &sandbox.record().name;
            write_stderr(&format!("mica: sandbox {name}: {why}\n"));
        }
        Ok(())
    }
}
