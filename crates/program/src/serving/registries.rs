//! The registries from which a language model or a client of E2B may have images pulled.

use std::net::IpAddr;

use micabox_image::Reference;
use micabox_transfer::Settings;

/// The registry of images whose names have none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// What the user allows.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Registries {
    /// Allow images of this registry to be pulled; may be repeated. Docker Hub is allowed, and so are registries
    /// that the settings file names, unless they are at a loopback or private address [ghcr.io, localhost:5000]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = name)]
    allow_registry: Vec<String>,
}

impl Registries {
    /// The user has named these.
    pub fn new(allow_registry: Vec<String>) -> Self {
        Self { allow_registry }
    }

    /// Fails with what is wrong if an image's registry is not to be asked.
    pub fn may_pull(&self, image: &Reference, settings: &Settings) -> Result<(), String> {
        let registry = image.registry();
        let is_named = registry == DEFAULT_REGISTRY || settings.registry.contains_key(registry);
        let mut allowed = self.allow_registry.iter();
        if allowed.any(|allowed| allowed == registry) || is_named && !is_inside(registry) {
            return Ok(());
        }
        Err(format!(
            "{} is not on this machine, and {registry} is a registry",
            image.familiar()
        ))
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
pub fn name(text: &str) -> Result<String, String> {
    let named = format!("{text}/x").parse::<Reference>();
    if named.is_ok_and(|reference| reference.registry() == text) {
        Ok(text.to_owned())
    } else {
        Err("expected a host[:port] as in names of images, without scheme and path".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(registries: &[&str]) -> Registries {
        Registries::new(registries.iter().map(|&name| name.to_owned()).collect())
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
        let may = |allowed: &Registries, image: &str| {
            allowed.may_pull(&image.parse().unwrap(), &settings)
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
            assert!(said.contains("is not on this machine"), "{image}: {said}");
        }
        let some = allowed(&["127.0.0.1:5000", "ghcr.io"]);
        may(&some, "127.0.0.1:5000/x").unwrap();
        may(&some, "ghcr.io/x:1").unwrap();
        may(&some, "127.0.0.1:5001/x").unwrap_err();
    }
}
