//! What tools may take from this machine for a sandbox: nothing, unless the user says so. A language model calls
//! them, and what it read may have been written to make it ask for more.

use std::net::IpAddr;

use micabox::ErrorKind;
use micabox_image::Reference;
use micabox_transfer::Settings;

use crate::failure::Failure;
use crate::run::{Bound, Taken};
use crate::serve::flags::Wanted;

/// The registry of images whose names have none.
const DEFAULT_REGISTRY: &str = "docker.io";

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

    /// Allow images of this registry to be pulled; may be repeated. Docker Hub is allowed, and so are registries
    /// that the settings file names, unless they are at a loopback or private address [ghcr.io, localhost:5000]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = registry)]
    allow_registry: Vec<String>,
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
        let registry = image.registry();
        let is_named = registry == DEFAULT_REGISTRY || settings.registry.contains_key(registry);
        if self
            .allow_registry
            .iter()
            .any(|allowed| allowed == registry)
            || is_named && !is_inside(registry)
        {
            return Ok(());
        }
        let what = format!(
            "{} is not on this machine, and {registry} is a registry",
            image.familiar()
        );
        Err(
            refused(&what, &format!("--allow-registry {registry}")).hint(
                "list_images lists the images that are here; the user may also `mica pull` this one",
            ),
        )
    }
}

/// Returns whether a registry is at an address that is another host's elsewhere, or this one's.
fn is_inside(registry: &str) -> bool {
    let host = registry.strip_prefix('[').map_or_else(
        || registry.split(':').next().unwrap_or_default(),
        |rest| rest.split(']').next().unwrap_or_default(),
    );
    match host.parse() {
        Ok(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
            Some(address) => is_inner(address),
            None => {
                address.is_loopback()
                    || address.is_unspecified()
                    || address.is_unique_local()
                    || address.is_unicast_link_local()
            }
        },
        Ok(IpAddr::V4(address)) => is_inner(address),
        Err(_) => {
            let host = host.to_ascii_lowercase();
            host == "localhost" || host.ends_with(".localhost")
        }
    }
}

fn is_inner(address: std::net::Ipv4Addr) -> bool {
    address.is_loopback()
        || address.is_unspecified()
        || address.is_private()
        || address.is_link_local()
}

/// Parses a registry's name as it is in names of images.
fn registry(text: &str) -> Result<String, String> {
    let named = format!("{text}/x").parse::<Reference>();
    if named.is_ok_and(|reference| reference.registry() == text) {
        Ok(text.to_owned())
    } else {
        Err("expected a host[:port] as in names of images, without scheme and path".to_owned())
    }
}

fn refused(what: &str, flag: &str) -> Failure {
    Failure::new(format!(
        "{what}, which this server does not allow: its user may start it as `mica mcp {flag}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(registries: &[&str]) -> Allowed {
        Allowed {
            allow_host_paths: false,
            allow_host_backend: false,
            allow_host_network: false,
            allow_publish: false,
            allow_registry: registries.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn images_come_from_registries_that_the_user_has_named() {
        let mut settings = Settings::default();
        for name in [
            "registry.lan:5000",
            "127.0.0.1:5000",
            "10.0.0.1",
            "[::1]:5000",
        ] {
            settings
                .registry
                .insert(name.to_owned(), Default::default());
        }
        let may = |allowed: &Allowed, image: &str| {
            Bound::may_pull(allowed, &image.parse().unwrap(), &settings)
        };
        let none = allowed(&[]);
        for image in [
            "box",
            "docker.io/team/box",
            "index.docker.io/x",
            "registry.lan:5000/x",
        ] {
            may(&none, image).unwrap();
        }
        for image in [
            "ghcr.io/x",
            "registry.lan/x",
            "registry.lan:5001/x",
            "localhost/x",
            "127.0.0.1:5000/x",
            "127.0.0.1:22/x",
            "[::1]:5000/x",
            "10.0.0.1/x",
            "169.254.169.254/latest/x",
            "2130706433:80/x",
        ] {
            let said = may(&none, image).unwrap_err();
            let said = said.message();
            assert!(
                said.contains("`mica mcp --allow-registry "),
                "{image}: {said}"
            );
        }
        let some = allowed(&["127.0.0.1:5000", "ghcr.io"]);
        may(&some, "127.0.0.1:5000/x").unwrap();
        may(&some, "ghcr.io/x:1").unwrap();
        may(&some, "127.0.0.1:5001/x").unwrap_err();
    }
}
