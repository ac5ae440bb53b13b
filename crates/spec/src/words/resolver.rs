//! Addresses of resolvers.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::WordError;

/// The port of DNS.
const PORT: u16 = 53;

/// The address of a resolver, with or without a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolver(pub SocketAddr);

impl FromStr for Resolver {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let address = text.parse::<IpAddr>().map(|address| (address, PORT).into());
        let address = address.or_else(|_| text.parse());
        let expected = "expected an address, as in 192.0.2.1 or 192.0.2.1:5353";
        address.map(Self).map_err(|_| expected.into())
    }
}
