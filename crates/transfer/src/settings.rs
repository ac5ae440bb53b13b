//! The settings file: mirrors, private certificate authorities, pull policy, limits.
//!
//! `config.example.toml` beside this crate's manifest explains every setting. An unknown setting
//! is an error, so that a typing mistake isn't silently ignored.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use micabox_image::convert::Place;
use micabox_image::{Limits, ParallelLayers};
use micabox_oci::Reference;
use micabox_registry::{Mirror, Registry, Transfer};
use micabox_trust::{Policy, PolicyError};
use serde::Deserialize;

/// Environment variable with the path of the settings file, in place of the one in the XDG
/// configuration directory.
pub const FILE_VARIABLE: &str = "MICABOX_CONFIG";

/// Where podman and skopeo have their policy: below the user's home directory, and the system's.
const USER_POLICY: &str = ".config/containers/policy.json";
const SYSTEM_POLICY: &str = "/etc/containers/policy.json";

/// Why settings could not be read. Partial settings are never used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is unreadable, or `MICABOX_CONFIG` names a missing one.
    #[error("cannot read the settings file {}: {source}", path.display())]
    Read {
        /// The settings file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not TOML, or has an unknown setting or an invalid value.
    #[error("the settings file {} is wrong: {message}", path.display())]
    Invalid {
        /// The settings file.
        path: PathBuf,
        /// The position in the file and the problem.
        message: String,
    },
}

/// When to ask the registry for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullPolicy {
    /// Every time. Layers that the store has are not fetched again.
    Always,
    /// If the store has no image under the reference.
    #[default]
    Missing,
    /// Never.
    Never,
}

/// All settings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// When to ask the registry for an image.
    pub pull_policy: PullPolicy,
    /// How many layers of an image are fetched and converted at the same time.
    pub parallel_layers: ParallelLayers,
    /// Whether sandboxes start before all of their image is here, where its registry has it as EROFS images.
    pub lazy: bool,
    /// Whether images and memories that are packed, or of which only a part is here, become whole in the background once
    /// they are used.
    pub make_whole: bool,
    /// Machines that may have what any registry has, asked before it and its mirrors.
    pub peers: Vec<Mirror>,
    /// Whether of an image in both forms that of EROFS images is pulled, unless a platform is asked for.
    pub prefer_erofs: bool,
    /// Whether pulls keep images' blobs as they came, and the indexes that led to them, so that others can have the images
    /// from this store under their registries' digests. Lazy pulls keep nothing.
    pub keep_blobs: bool,
    /// The file that says which images may be used (containers-policy.json(5)); without it all may. [`Settings::load`]
    /// finds the user's or the system's where none is named.
    pub policy: Option<PathBuf>,
    /// Whether signatures in sigstore's bundles count, which are about no name.
    pub sigstore_bundles: bool,
    /// The directory of files that say where OpenPGP signatures are (containers-registries.d(5)); without it the user's,
    /// or else the system's.
    pub registries_d: Option<PathBuf>,
    /// Whether the store's files get fs-verity where its filesystem has it.
    pub fs_verity: bool,
    /// Days after which images that nothing was started from, and snapshots that nothing used, are packed, in the
    /// background of the next pull; without it none is. Volumes are left as they are.
    pub pack_unused_days: Option<u32>,
    /// Timeouts and retries.
    pub transfer: Transfer,
    /// Limits on what a layer may cost.
    pub limits: Limits,
    /// Settings of single registries, by `host[:port]`.
    pub registry: BTreeMap<String, Registry>,
    /// Where layers are converted. Not in the file: it is the program's choice, and `mica` always
    /// converts in the jail.
    #[serde(skip)]
    pub conversion: Place,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pull_policy: PullPolicy::default(),
            parallel_layers: ParallelLayers::default(),
            lazy: false,
            make_whole: true,
            peers: Vec::new(),
            prefer_erofs: false,
            keep_blobs: false,
            policy: None,
            sigstore_bundles: false,
            registries_d: None,
            fs_verity: true,
            pack_unused_days: None,
            transfer: Transfer::default(),
            limits: Limits::default(),
            registry: BTreeMap::new(),
            conversion: Place::default(),
        }
    }
}

impl Settings {
    /// Loads the settings of this process's user: from `$MICABOX_CONFIG`, else from
    /// `micabox/config.toml` in the XDG configuration directory, else the defaults. Where they name no policy it is the
    /// one that podman and skopeo have, the user's or else the system's, if there is one.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]. A missing file is an error only if `$MICABOX_CONFIG` names it.
    pub fn load() -> Result<Self, ConfigError> {
        let mut settings = Self::of_user()?;
        settings.policy = settings.policy.or_else(containers_policy);
        Ok(settings)
    }

    fn of_user() -> Result<Self, ConfigError> {
        if let Some(path) = variable(FILE_VARIABLE) {
            // The file's own paths are relative to its directory, wherever this process goes.
            let path = std::path::absolute(&path).unwrap_or_else(|_| path.into());
            return Self::read(&path);
        }
        let directory = variable("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            // The XDG specification requires relative paths to be ignored.
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

    /// Reads the settings in the file at `path`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
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

    /// Parses settings from TOML. Relative paths in them are relative to `directory`.
    fn parse(text: &str, directory: &Path) -> Result<Self, String> {
        let mut settings: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let own = [&mut settings.policy, &mut settings.registries_d];
        for path in own.into_iter().flatten() {
            *path = directory.join(&*path);
        }
        for (name, registry) in &mut settings.registry {
            // Only the parser of references knows the valid names of registries.
            let named = format!("{name}/x").parse::<Reference>();
            if !named.is_ok_and(|reference| reference.registry() == name) {
                return Err(format!(
                    "[registry.\"{name}\"]: expected a host[:port] as in references, without \
                     scheme and path"
                ));
            }
            if registry.client_certificate.is_some() != registry.client_key.is_some() {
                return Err(format!(
                    "[registry.\"{name}\"]: `client-certificate` and `client-key` need each other"
                ));
            }
            let own = [&mut registry.client_certificate, &mut registry.client_key];
            let files = registry.ca.iter_mut().chain(own.into_iter().flatten());
            for file in files {
                *file = directory.join(&*file);
            }
        }
        Ok(settings)
    }

    /// Reads the policy, if there is one.
    ///
    /// # Errors
    ///
    /// [`PolicyError`].
    pub fn policy(&self) -> Result<Option<Policy>, PolicyError> {
        let policy = self.policy.as_deref().map(Policy::read).transpose()?;
        Ok(policy.map(|policy| policy.with_bundles(self.sigstore_bundles)))
    }

    /// Returns the settings that conversions need.
    #[must_use]
    pub fn for_images(&self) -> micabox_image::Settings {
        micabox_image::Settings {
            parallel_layers: self.parallel_layers,
            limits: self.limits.clone(),
            conversion: self.conversion,
            policy: self.policy.clone(),
        }
    }

    /// Returns the settings that the registry client needs.
    #[must_use]
    pub fn for_registries(&self) -> micabox_registry::Settings {
        micabox_registry::Settings {
            transfer: self.transfer.clone(),
            peers: self.peers.clone(),
            registry: self.registry.clone(),
        }
    }
}

/// Returns the environment variable, unless it is empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the policy that podman and skopeo have by default: the user's, or else the system's. One that is there and
/// can't be read is an error of every pull.
fn containers_policy() -> Option<PathBuf> {
    let home = variable("HOME").map(|home| Path::new(&home).join(USER_POLICY));
    let system = PathBuf::from(SYSTEM_POLICY);
    let mut all = home.into_iter().chain([system]);
    all.find(|path| path.try_exists().unwrap_or(true))
}

#[cfg(test)]
mod tests {

    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(text, Path::new("/etc/micabox"))
    }

    #[test]
    fn the_example_of_settings_is_valid_and_names_the_defaults() {
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
        assert_eq!(example.transfer.connections, defaults.transfer.connections);
        assert_eq!(
            example.transfer.longest_pause,
            defaults.transfer.longest_pause
        );
        assert_eq!(example.limits, defaults.limits);
        assert!(example.lazy && !defaults.lazy);
        assert!(!example.make_whole && defaults.make_whole);
        assert_eq!(example.peers, example.for_registries().peers);
        assert_eq!(example.peers[1].registry, "10.0.0.8:5000");
        assert!(example.prefer_erofs && !defaults.prefer_erofs);
        assert!(example.keep_blobs && !defaults.keep_blobs);
        assert!(example.sigstore_bundles && !defaults.sigstore_bundles);
        assert_eq!(example.pack_unused_days, Some(14));
        assert!(example.fs_verity && defaults.fs_verity);
        let policy = Path::new("/etc/containers/policy.json");
        assert_eq!(example.policy.as_deref(), Some(policy));
        let registries = Path::new("/etc/containers/registries.d");
        assert_eq!(example.registries_d.as_deref(), Some(registries));
        assert_eq!(
            example.for_registries().registry("docker.io").mirrors,
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
            example
                .for_registries()
                .registry("registry.example.com:5000")
                .ca,
            [Path::new("/etc/micabox/example-ca.pem")]
        );
        let registry = example
            .for_registries()
            .registry("registry.example.com:5000");
        let key = Path::new("/etc/micabox/client.key");
        assert_eq!(registry.client_key.as_deref(), Some(key));
        assert!(example.for_registries().plain_http("registry.lan:5000"));
    }

    #[test]
    fn plain_http_is_for_loopback_unless_said_otherwise() {
        let settings = parse("[registry.\"localhost:5443\"]\nplain-http = false")
            .unwrap()
            .for_registries();
        assert!(settings.plain_http("localhost:5000"));
        assert!(!settings.plain_http("localhost:5443"));
        assert!(!settings.plain_http("docker.io"));
    }

    #[test]
    fn mistakes_in_settings_are_errors_that_say_where() {
        for (text, part) in [
            ("pull-polcy = 'always'", "pull-polcy"),
            ("pull-policy = 'sometimes'", "sometimes"),
            ("parallel-layers = 0", "1 to 16"),
            ("[transfer]\nidle-timeout = 0", "seconds"),
            ("[transfer]\nattempts = 0", "1 to 100"),
            ("[transfer]\nconnections = 0", "1 to 32"),
            ("[transfer]\nconnections = 33", "1 to 32"),
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
            (
                "[registry.\"docker.io\"]\nclient-key = 'x.key'",
                "need each other",
            ),
            ("[registry", "line 1"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_missing_settings_file_is_an_error_that_names_it() {
        let error = Settings::read(Path::new("/proc/none/mica.toml")).unwrap_err();
        assert!(error.to_string().contains("/proc/none/mica.toml"));
    }
}
