//! Ports that are published, and those of a sandbox alone.

use std::str::FromStr;

use super::WordError;
use crate::network::{Publish, PublishError};

/// Ports of the host that lead to a sandbox, as many as a range has: `[[IP:][HOST]:]GUEST[/PROTOCOL]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published(pub Vec<Publish>);

/// Ports of a sandbox, each on any free port of the host: `GUEST[/PROTOCOL]`, which may be a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed(pub Vec<Publish>);

impl FromStr for Published {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        Publish::all(text).map(Self)
    }
}

impl FromStr for Exposed {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if text.contains(':') {
            return Err("expected a port or a range, as in 80, 53/udp or 8000-8010".into());
        }
        let all = Publish::all(text);
        all.map(Self).map_err(|error| error.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposed_ports_are_of_no_host() {
        let exposed = |text: &str| text.parse().map(|Exposed(all)| all.len());
        assert_eq!(exposed("80"), Ok(1));
        assert_eq!(exposed("8000-8010/udp"), Ok(11));
        for bad in ["8080:80", "x", "80/sctp", ""] {
            exposed(bad).unwrap_err();
        }
    }
}
