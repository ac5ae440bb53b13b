//! What tools may take from this machine for a sandbox: nothing, unless the user says so. A language model calls
//! them, and what it read may have been written to make it ask for more.

use micabox::ErrorKind;
use micabox_image::Reference;
use micabox_transfer::Settings;

use crate::failure::Failure;
use crate::registries::Registries;
use crate::run::{Bound, Taken};
use crate::serve::flags::Wanted;

/// What the user allows.
#[derive(Clone, Debug, clap::Args)]
pub struct Allowed {
    /// Allow options of sandboxes that name files, folders or variables of this machine: volume and mount
    /// with a path, upper as a folder, root-disk, patch, patch-tar, env-file, label-file, vsock, and env
    /// without a value
    #[arg(long)]
    allow_host_paths: bool,

    /// Allow sandboxes that share this machine's kernel, or are shown more of it: the options backend as "host"
    /// and nested-virtualization
    #[arg(long)]
    allow_host_backend: bool,

    /// Allow sandboxes that reach this machine's own and link-local addresses, and resolvers of their own: the option
    /// net-allow with a block of such addresses, and dns
    #[arg(long)]
    allow_host_network: bool,

    /// Allow sandboxes whose ports are published on this machine: the option publish
    #[arg(long)]
    allow_publish: bool,

    #[command(flatten)]
    registries: Registries,
}

impl Allowed {
    /// Fails if a sandbox would have more of this machine than is allowed, and sees to it that it gets no more.
    pub fn bound(&self, wanted: &mut Wanted) -> Result<(), Failure> {
        for option in &wanted.given {
            self.check_option(option, &wanted.sandbox.taken_by(option))?;
        }
        if !self.allow_host_network && wanted.given.iter().any(|option| option == "net-allow") {
            wanted.sandbox.open_nothing();
        }
        Ok(())
    }

    fn check_option(&self, option: &str, taken: &Taken) -> Result<(), Failure> {
        match taken {
            Taken::Path(what) if !self.allow_host_paths => {
                let what = format!("`{option}` takes {what} from this machine");
                Err(refused(&what, "--allow-host-paths")
                    .hint("use a named volume, or copy files in with write_file"))
            }
            Taken::Kernel if !self.allow_host_backend => {
                let what = match option {
                    "backend" => "`backend` \"host\" shares this machine's kernel".to_owned(),
                    _ => format!("`{option}` shows a sandbox more of this machine's kernel"),
                };
                Err(refused(&what, "--allow-host-backend")
                    .hint(format!("omit `{option}` for a machine of its own")))
            }
            Taken::Network(what) if !self.allow_host_network => {
                let what = format!("`{option}` opens {what} to a sandbox by way of this machine");
                Err(refused(&what, "--allow-host-network")
                    .hint("programs in a sandbox reach each other at its own 127.0.0.1"))
            }
            Taken::Port(what) if !self.allow_publish => {
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
        self.registries.may_pull(image, settings).map_err(|what| {
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
