//! What tools may take from this machine for a sandbox: nothing, unless the user says so. A language model calls
//! them, and what it read may have been written to make it ask for more.

use micabox::ErrorKind;
use micabox_image::Reference;
use micabox_transfer::Settings;

use micabox_creation::Bound;
use micabox_creation::{Taken, Wanted};
use micabox_program::failure::Failure;
use micabox_program::serving::McpArgs;

/// What the user allows, by flags.
#[derive(Clone, Debug)]
pub struct Allowed(pub McpArgs);

impl Allowed {
    /// Fails if a sandbox would have more of this machine than is allowed, and sees to it that it gets no more.
    pub fn bound(&self, wanted: &mut Wanted) -> Result<(), Failure> {
        for (option, taken) in wanted.taken() {
            self.check_option(option, &taken)?;
        }
        if !self.0.allow_host_network && wanted.has("net-allow") {
            wanted.options.network.open_nothing();
        }
        Ok(())
    }

    fn check_option(&self, option: &str, taken: &Taken) -> Result<(), Failure> {
        match taken {
            Taken::Path(what) if !self.0.allow_host_paths => {
                let what = format!("`{option}` takes {what} from this machine");
                Err(refused(&what, "--allow-host-paths")
                    .hint("use a named volume, or copy files in with write_file"))
            }
            Taken::Kernel if !self.0.allow_host_backend => {
                let what = match option {
                    "backend" => "`backend` \"host\" shares this machine's kernel".to_owned(),
                    _ => format!("`{option}` shows a sandbox more of this machine's kernel"),
                };
                Err(refused(&what, "--allow-host-backend")
                    .hint(format!("omit `{option}` for a machine of its own")))
            }
            Taken::Network(what) if !self.0.allow_host_network => {
                let what = format!("`{option}` opens {what} to a sandbox by way of this machine");
                Err(refused(&what, "--allow-host-network")
                    .hint("programs in a sandbox reach each other at its own 127.0.0.1"))
            }
            Taken::Port(what) if !self.0.allow_publish => {
                let what = format!("`{option}` opens the port {what} of this machine");
                Err(refused(&what, "--allow-publish")
                    .hint("run_command with a client in the sandbox reaches the port there"))
            }
            Taken::Unknown => Err(Failure::of_kind(
                ErrorKind::Invalid,
                format!("`{option}` is not an option that tools may give"),
            )),
            _ => Ok(()),
        }
    }
}

impl Bound for Allowed {
    fn may_pull(&self, image: &Reference, settings: &Settings) -> Result<(), Failure> {
        self.0.registries.may_pull(image, settings).map_err(|what| {
            let registry = image.registry();
            refused(&what, &format!("--allow-registry {registry}")).hint(
                "list_images lists the images that are here; the user may also `mica pull` this one",
            )
        })
    }
}

fn refused(what: &str, flag: &str) -> Failure {
    Failure::new(format!(
        "{what}, which this server does not allow: its user may start it as `mica mcp {flag}`"
    ))
}
