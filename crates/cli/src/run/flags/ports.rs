//! `-p`, `-P` and `--expose`: the ports of this machine that lead to a sandbox.

use micabox::{Publish, PublishError};

use super::sandbox::SandboxArgs;
use crate::failure::Failure;

/// A value of `-p` or `--expose`: as many ports as its range has.
#[derive(Clone, Debug)]
pub struct Ports(Vec<Publish>);

impl Ports {
    /// Returns the first of them.
    pub(super) fn first(&self) -> Option<&Publish> {
        self.0.first()
    }
}

/// Parses a value of `-p`.
pub fn published(text: &str) -> Result<Ports, PublishError> {
    Publish::all(text).map(Ports)
}

/// Parses a value of `--expose`: ports of the sandbox, and of no host.
pub fn exposed(text: &str) -> Result<Ports, String> {
    if text.contains(':') {
        return Err("expected a port or a range, as in 80, 53/udp or 8000-8010".into());
    }
    published(text).map_err(|error| error.to_string())
}

impl SandboxArgs {
    /// Returns the ports to publish. With `-P` those too that the image (`exposed`) and `--expose` name, each
    /// on any free port of this machine unless `-p` has one for it.
    pub fn published(&self, exposed_by_image: &[String]) -> Result<Vec<Publish>, Failure> {
        let mut all: Vec<Publish> = self
            .publish
            .iter()
            .flat_map(|ports| ports.0.clone())
            .collect();
        if !self.publish_all {
            return Ok(all);
        }
        let named = exposed_by_image.iter().map(|port| {
            exposed(port)
                .map_err(|why| Failure::new(format!("the image exposes port `{port}`: {why}")))
        });
        let named: Vec<Ports> = named.collect::<Result<_, _>>()?;
        for port in named.iter().chain(&self.expose).flat_map(|ports| &ports.0) {
            let is_known =
                |known: &Publish| (known.guest, known.protocol) == (port.guest, port.protocol);
            if !all.iter().any(is_known) {
                all.push(*port);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;

    #[test]
    fn all_exposed_ports_are_published_only_on_request() {
        let published = |flags: &[&str]| {
            let args = parse(&[flags, &["box"]].concat()).unwrap();
            let image = ["80/tcp".to_owned(), "90-91".to_owned()];
            let ports = args.sandbox.published(&image).unwrap();
            ports.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(published(&["--expose", "70"]), [] as [&str; 0]);
        assert_eq!(
            published(&["-P", "--expose", "53/udp", "-p", "8080:80"]),
            [
                "127.0.0.1:8080:80/tcp",
                "127.0.0.1:0:90/tcp",
                "127.0.0.1:0:91/tcp",
                "127.0.0.1:0:53/udp"
            ]
        );
        for bad in ["8080:80", "x", "80/sctp"] {
            parse(&["--expose", bad, "box"]).unwrap_err();
        }
        let args = parse(&["-P", "box"]).unwrap();
        args.sandbox.published(&["80/sctp".into()]).unwrap_err();
    }
}
