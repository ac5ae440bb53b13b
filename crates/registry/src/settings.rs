//! How to reach registries: mirrors, certificate authorities, timeouts.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use micabox_oci::reference::is_loopback;
use serde::{Deserialize, Deserializer, de};
use url::Url;

/// Settings for reaching registries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Timeouts and retries.
    pub transfer: Transfer,
    /// Mirrors of every registry, which are asked before its own.
    pub peers: Vec<Mirror>,
    /// Settings of single registries, by `host[:port]`.
    pub registry: BTreeMap<String, Registry>,
}

impl Settings {
    /// Returns the settings of `registry` (`host[:port]`).
    #[must_use]
    pub fn registry(&self, registry: &str) -> Registry {
        self.registry.get(registry).cloned().unwrap_or_default()
    }

    /// Returns whether to use plain HTTP for `registry`.
    #[must_use]
    pub fn plain_http(&self, registry: &str) -> bool {
        self.registry
            .get(registry)
            .and_then(|settings| settings.plain_http)
            .unwrap_or_else(|| is_loopback(registry))
    }
}

/// Timeouts and retries of all requests to a registry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Transfer {
    /// Time limit for making a connection.
    #[serde(deserialize_with = "seconds")]
    pub connect_timeout: Duration,
    /// Time limit for the next byte of a response.
    #[serde(deserialize_with = "seconds")]
    pub idle_timeout: Duration,
    /// Attempts at one request to one registry without any progress.
    #[serde(deserialize_with = "attempts")]
    pub attempts: u32,
    /// Connections for one large blob, a range on each. All blobs of an image share those beyond
    /// the first of each.
    #[serde(deserialize_with = "connections")]
    pub connections: NonZero<usize>,
    /// Longest pause that a registry may ask for.
    #[serde(deserialize_with = "seconds")]
    pub longest_pause: Duration,
    /// Pause before the second attempt; doubles each time. Not in the file: tests shorten it.
    #[serde(skip)]
    pub first_pause: Duration,
    /// Whether what is fetched is for other machines' clients (`mica store serve`), whose requests name it (`Via`), so
    /// that servers that mirror each other don't ask in circles. Not in the file.
    #[serde(skip)]
    pub sends_via: bool,
}

impl Default for Transfer {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(30),
            attempts: 6,
            connections: const { NonZero::new(8).unwrap() },
            longest_pause: Duration::from_secs(60),
            first_pause: Duration::from_millis(250),
            sends_via: false,
        }
    }
}

/// Settings of one registry.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Registry {
    /// Registries to ask first, in this order.
    pub mirrors: Vec<Mirror>,
    /// PEM files with certificate authorities to trust beside the system's.
    pub ca: Vec<PathBuf>,
    /// PEM file with the certificate by which the registry knows this client, and those between it and its
    /// authority. It has [`Self::client_key`].
    pub client_certificate: Option<PathBuf>,
    /// PEM file with the key of [`Self::client_certificate`].
    pub client_key: Option<PathBuf>,
    /// Whether to use plain HTTP; `None` means only to loopback addresses.
    pub plain_http: Option<bool>,
}

/// A registry that holds copies of another one's images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// `host[:port]`, which also names its credentials and its own table in the settings.
    pub registry: String,
    /// Prefix of the repository's name there; empty or ending in a slash.
    pub prefix: String,
    /// Whether its URL's scheme is `http`.
    pub plain_http: bool,
}

impl<'de> Deserialize<'de> for Mirror {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = |what: &str| de::Error::custom(format!("mirror `{text}` {what}"));
        let url = Url::parse(&text)
            .map_err(|_| wrong("is not a URL: expected for example https://mirror.example.com"))?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(wrong("must begin with https:// or http://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("must not hold credentials: use `mica login`"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("must not have a query or a fragment"));
        }
        let prefix = match url.path().trim_matches('/') {
            "" => String::new(),
            path => format!("{path}/"),
        };
        Ok(Self {
            registry: authority(&url).ok_or_else(|| wrong("has no host"))?,
            prefix,
            plain_http: url.scheme() == "http",
        })
    }
}

/// Returns `host[:port]` of a URL, as in references and credentials.
pub(crate) fn authority(url: &Url) -> Option<String> {
    let host = url.host_str().filter(|host| !host.is_empty())?;
    Some(match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    // A day is longer than any sensible timeout and short of every overflow.
    match u64::deserialize(deserializer)? {
        seconds @ 1..=86_400 => Ok(Duration::from_secs(seconds)),
        seconds => Err(de::Error::custom(format!(
            "{seconds} is not within 1 to 86400 seconds"
        ))),
    }
}

fn attempts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        attempts @ 1..=100 => Ok(attempts),
        attempts => Err(de::Error::custom(format!(
            "{attempts} is not within 1 to 100"
        ))),
    }
}

fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZero<usize>, D::Error> {
    let connections = usize::deserialize(deserializer)?;
    NonZero::new(connections)
        .filter(|connections| connections.get() <= 32)
        .ok_or_else(|| de::Error::custom(format!("{connections} is not within 1 to 32")))
}
