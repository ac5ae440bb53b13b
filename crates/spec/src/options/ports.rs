//! `-p`, `-P` and `--expose`: the ports of this machine that lead to a sandbox.

use super::error::OptionError;
use super::network::NetworkOptions;
use crate::network::Publish;
use crate::words::{Exposed, Published};

impl NetworkOptions {
    /// Returns the ports to publish. With `-P` those too that the image (`exposed`) and `--expose` name, each
    /// on any free port of this machine unless `-p` has one for it.
    ///
    /// # Errors
    /// If a port of the image is none.
    pub fn published(&self, exposed_by_image: &[String]) -> Result<Vec<Publish>, OptionError> {
        let mut all: Vec<Publish> = self
            .publish
            .iter()
            .flat_map(|Published(ports)| ports.clone())
            .collect();
        if !self.publish_all {
            return Ok(all);
        }
        let named = exposed_by_image.iter().map(|port| {
            let wrong = |why| OptionError::Unfit(format!("the image exposes port `{port}`: {why}"));
            port.parse().map_err(wrong)
        });
        let named: Vec<Exposed> = named.collect::<Result<_, _>>()?;
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

#[cfg(all(test, feature = "clap"))]
mod tests {
    use super::super::tests::parse;

    #[test]
    fn all_exposed_ports_are_published_only_on_request() {
        let published = |flags: &[&str]| {
            let args = parse(&[flags, &["box"]].concat()).unwrap();
            let image = ["80/tcp".to_owned(), "90-91".to_owned()];
            let ports = args.sandbox.network.published(&image).unwrap();
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
        args.sandbox
            .network
            .published(&["80/sctp".into()])
            .unwrap_err();
    }
}
