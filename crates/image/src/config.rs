//! The settings file: mirrors, private certificate authorities, pull policy, limits.
//!
//! `config.example.toml` beside this crate's manifest explains every setting. A setting that
//! isn't known is an error, so that a typing mistake doesn't silently change nothing.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use url::Url;

use crate::Limits;
use crate::convert::Place;
use crate::reference::is_loopback;

/// Names the settings file, instead of the XDG configuration directory.
pub const FILE_VARIABLE: &str = "MICABOX_CONFIG";

/// Why settings could not be read. Nothing is pulled with half of them.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is there but unreadable, or `MICABOX_CONFIG` names one that isn't there.
    #[error("cannot read the settings file {}: {source}", path.display())]
    Read {
        /// The settings file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not TOML, an unknown setting or a value that makes no sense.
    #[error("the settings file {} is wrong: {message}", path.display())]
    Invalid {
        /// The settings file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
}

/// When the registry is asked for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullPolicy {
    /// Every time. Layers that the store has are not fetched again.
    Always,
    /// If the store has no image under the reference.
    #[default]
    Missing,
    /// Not at all.
    Never,
}

/// All settings.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// When the registry is asked for an image.
    pub pull_policy: PullPolicy,
    /// How many layers of an image are fetched and converted at the same time.
    pub parallel_layers: ParallelLayers,
    /// Timeouts and retries.
    pub transfer: Transfer,
    /// Bounds on what a layer may cost.
    pub limits: Limits,
    /// What single registries need, by `host[:port]`.
    pub registry: BTreeMap<String, Registry>,
    /// Where layers are converted. Not in the file: a program chooses, and `mica` has no other
    /// way than in jail.
    #[serde(skip)]
    pub conversion: Place,
}

/// A number of layers, 1 to 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParallelLayers(usize);

impl ParallelLayers {
    /// `count`, or the nearest number that is allowed.
    pub fn new(count: usize) -> Self {
        Self(count.clamp(1, 16))
    }

    /// The number.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for ParallelLayers {
    fn default() -> Self {
        Self(3)
    }
}

impl<'de> Deserialize<'de> for ParallelLayers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match usize::deserialize(deserializer)? {
            count @ 1..=16 => Ok(Self(count)),
            count => Err(de::Error::custom(format!("{count} is not within 1 to 16"))),
        }
    }
}

/// Timeouts and retries of everything asked of a registry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Transfer {
    /// For a connection to stand.
    #[serde(deserialize_with = "seconds")]
    pub connect_timeout: Duration,
    /// For the next byte of an answer to arrive.
    #[serde(deserialize_with = "seconds")]
    pub idle_timeout: Duration,
    /// How often one thing is asked of one registry without getting any further.
    #[serde(deserialize_with = "attempts")]
    pub attempts: u32,
    /// Longest pause that a registry may ask for.
    #[serde(deserialize_with = "seconds")]
    pub longest_pause: Duration,
    /// Pause before the second attempt; doubles each time. Not in the file: tests shorten it.
    #[serde(skip)]
    pub first_pause: Duration,
}

impl Default for Transfer {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(30),
            attempts: 6,
            longest_pause: Duration::from_secs(60),
            first_pause: Duration::from_millis(250),
        }
    }
}

/// What one registry needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Registry {
    /// Registries to ask first, in this order.
    pub mirrors: Vec<Mirror>,
    /// PEM files with certificate authorities to trust beside the system's.
    pub ca: Vec<PathBuf>,
    /// Whether to speak plain HTTP; `None` means only to loopback addresses.
    pub plain_http: Option<bool>,
}

/// A registry that holds copies of another one's images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// `host[:port]`, which also names its credentials and its own table in the settings.
    pub registry: String,
    /// What stands in front of the repository's name there; empty or ending in a slash.
    pub prefix: String,
    /// Whether its URL says `http:`.
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
            return Err(wrong("must not hold credentials: use `docker login`"));
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

/// `host[:port]` of a URL, as references and credentials write it.
pub(crate) fn authority(url: &Url) -> Option<String> {
    let host = url.host_str().filter(|host| !host.is_empty())?;
    Some(match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}

impl Settings {
    /// The settings of whoever runs this process: from `$MICABOX_CONFIG`, else from
    /// `micabox/config.toml` in the XDG configuration directory, else the defaults.
    pub fn load() -> Result<Self, ConfigError> {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        if let Some(path) = variable(FILE_VARIABLE) {
            return Self::read(Path::new(&path));
        }
        let directory = variable("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            // The specification says to ignore relative ones.
            .filter(|path| path.is_absolute())
            .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
        let Some(directory) = directory else {
            return Ok(Self::default());
        };
        match Self::read(&directory.join("micabox/config.toml")) {
            Err(ConfigError::Read { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(Self::default())
            }
            other => other,
        }
    }

    /// The settings in the file at `path`.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path.parent().unwrap_or(Path::new(""))).map_err(|message| {
            ConfigError::Invalid {
                path: path.to_owned(),
                message,
            }
        })
    }

    /// Settings from TOML; relative paths in it are relative to `directory`.
    fn parse(text: &str, directory: &Path) -> Result<Self, String> {
        let mut settings: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (name, registry) in &mut settings.registry {
            // The one check that knows what a registry may be called is a reference's.
            let named = format!("{name}/x").parse::<crate::Reference>();
            if !named.is_ok_and(|reference| reference.registry() == name) {
                return Err(format!(
                    "[registry.\"{name}\"]: expected a host[:port] as in references, without \
                     scheme and path"
                ));
            }
            for ca in &mut registry.ca {
                *ca = directory.join(&*ca);
            }
        }
        Ok(settings)
    }

    /// What the settings say about `registry` (`host[:port]`).
    pub fn registry(&self, registry: &str) -> Registry {
        self.registry.get(registry).cloned().unwrap_or_default()
    }

    /// Whether to speak plain HTTP to `registry`.
    pub fn plain_http(&self, registry: &str) -> bool {
        self.registry
            .get(registry)
            .and_then(|settings| settings.plain_http)
            .unwrap_or_else(|| is_loopback(registry))
    }
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    // A day is longer than anybody waits and short of every overflow.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(text, Path::new("/etc/micabox"))
    }

    #[test]
    fn the_example_is_valid_and_says_the_defaults() {
        let example = parse(include_str!("../config.example.toml")).unwrap();
        let defaults = Settings::default();
        assert_eq!(example.pull_policy, defaults.pull_policy);
        assert_eq!(example.parallel_layers, defaults.parallel_layers);
        assert_eq!(
            example.transfer.connect_timeout,
            defaults.transfer.connect_timeout
        );
        assert_eq!(
            example.transfer.idle_timeout,
            defaults.transfer.idle_timeout
        );
        assert_eq!(example.transfer.attempts, defaults.transfer.attempts);
        assert_eq!(
            example.transfer.longest_pause,
            defaults.transfer.longest_pause
        );
        assert_eq!(example.limits, defaults.limits);
        assert_eq!(
            example.registry("docker.io").mirrors,
            [
                Mirror {
                    registry: "mirror.example.com".into(),
                    prefix: "docker-hub/".into(),
                    plain_http: false,
                },
                Mirror {
                    registry: "localhost:5001".into(),
                    prefix: String::new(),
                    plain_http: true,
                },
            ]
        );
        assert_eq!(
            example.registry("registry.example.com:5000").ca,
            [Path::new("/etc/micabox/example-ca.pem")]
        );
        assert!(example.plain_http("registry.lan:5000"));
    }

    #[test]
    fn plain_http_is_for_loopback_unless_said_otherwise() {
        let settings = parse("[registry.\"localhost:5443\"]\nplain-http = false").unwrap();
        assert!(settings.plain_http("localhost:5000"));
        assert!(!settings.plain_http("localhost:5443"));
        assert!(!settings.plain_http("docker.io"));
    }

    #[test]
    fn mistakes_are_errors_that_say_where() {
        for (text, part) in [
            ("pull-polcy = 'always'", "pull-polcy"),
            ("pull-policy = 'sometimes'", "sometimes"),
            ("parallel-layers = 0", "1 to 16"),
            ("[transfer]\nidle-timeout = 0", "seconds"),
            ("[transfer]\nattempts = 0", "1 to 100"),
            ("[limits]\nentires = 3", "entires"),
            ("[registry.\"https://docker.io\"]", "without scheme"),
            ("[registry.\"index.docker.io\"]", "host[:port]"),
            (
                "[registry.\"docker.io\"]\nmirrors = ['mirror.lan']",
                "not a URL",
            ),
            (
                "[registry.\"docker.io\"]\nmirrors = ['ftp://m']",
                "https://",
            ),
            (
                "[registry.\"docker.io\"]\nmirrors = ['https://u:p@m']",
                "credentials",
            ),
            ("[registry.\"docker.io\"]\nmirror = []", "mirror"),
            ("[registry", "line 1"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let error = Settings::read(Path::new("/nonexistent/mica.toml")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/mica.toml"));
    }
}
