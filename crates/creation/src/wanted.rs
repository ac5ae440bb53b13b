//! The options of a request, which are the flags of `mica run` about sandboxes.

use std::time::Duration;

use micabox::{DEFAULT_MEMORY_MIB, ErrorKind, Upper, opens_what_is_closed};
pub use micabox_spec::options::Taken;
use micabox_spec::options::{Given, Opt, OptionError, SandboxOptions, exclusions};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::here::here;
use crate::dockers::refused_option;
use micabox_program::failure::Failure;

/// What a sandbox is made of.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Create {
    /// The image; none for one that is made from a snapshot or a root disk.
    #[serde(default)]
    pub image: Option<String>,
    /// Long options of `mica run` by name: true, a string, a number, a list of these, or an object of
    /// names and values.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "SandboxOptions"))]
    pub options: Map<String, Value>,
}

/// A sandbox that runs no command of its own.
#[derive(Debug)]
pub struct Wanted {
    /// The options that are given, by their long names.
    given: Vec<String>,
    /// What it is made of.
    pub options: SandboxOptions,
    /// The image's name.
    pub image: Option<String>,
}

impl Wanted {
    /// Makes one of these options alone.
    pub fn new(options: SandboxOptions, image: Option<String>) -> Self {
        Self {
            given: Vec::new(),
            options,
            image,
        }
    }

    /// Returns whether an option is given, by its long name.
    pub fn has(&self, option: &str) -> bool {
        self.given.iter().any(|given| given == option)
    }

    /// Returns the options that are given, and what each takes from this machine.
    pub fn taken(&self) -> impl Iterator<Item = (&str, Taken)> {
        let given = self.given.iter();
        given.map(|option| (&**option, opened(self.options.taken_by(option))))
    }

    /// Fails if the options about the network contradict each other.
    pub fn check_network(&self) -> Result<(), Failure> {
        let network = self.options.network(&[]);
        network.map(drop).map_err(|error| Failure::of(&error))
    }

    /// Returns the number of processors.
    pub fn cpus(&self) -> u8 {
        let machine = &self.options.machine;
        match machine.cpus() {
            Some(cpus) => cpus.whole,
            None => micabox::builder::default_cpus(machine.backend),
        }
    }

    /// Returns the memory in MiB.
    pub fn memory_mib(&self) -> u32 {
        let memory = self.options.machine.memory();
        memory.unwrap_or(DEFAULT_MEMORY_MIB)
    }

    /// Returns the size in bytes of the disk for changes, if they go to one.
    pub fn disk_size(&self) -> Option<u64> {
        match self.options.files.upper() {
            Some(Upper::Disk { size }) => Some(*size),
            _ => None,
        }
    }

    /// Returns how long the sandbox may be idle; None for ever.
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.options.life.expiry().idle_timeout
    }
}

/// Names the rule that opens what nothing else reaches, as this machine has its addresses now.
fn opened(taken: Taken) -> Taken {
    let Taken::Opened(rules) = taken else {
        return taken;
    };
    let opening = rules.iter().find(|rule| opens_what_is_closed(rule));
    opening.map_or(Taken::Nothing, |rule| Taken::Network(rule.to_string()))
}

/// Reads what a request wants.
///
/// # Errors
/// If there is no such option, or no such value of one, or if they exclude each other.
pub fn wanted(create: &Create) -> Result<Wanted, Failure> {
    let (options, given) = read(&create.options, |_| true)?;
    exclusions::check(&given, create.image.is_some()).map_err(invalid)?;
    Ok(Wanted {
        given,
        options,
        image: create.image.clone(),
    })
}

/// Reads those options for which `keep` is true. Returns their names, too.
///
/// # Errors
/// If there is no such option, or no such value of one.
pub fn read(
    options: &Map<String, Value>,
    keep: impl Fn(&Opt) -> bool,
) -> Result<(SandboxOptions, Vec<String>), Failure> {
    let read = || {
        let mut given = Given::new(options)?.only(keep);
        Ok((SandboxOptions::read(&mut given)?, given.end()?))
    };
    let (options, given) = read().map_err(invalid)?;
    Ok((here(options)?, given))
}

fn invalid(error: OptionError) -> Failure {
    let message = refused_option(&error).unwrap_or_else(|| error.to_string());
    Failure::of_kind(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_message_about_an_option_is_in_the_words_of_a_request() {
        let message = |options: Value| {
            let create = json!({"image": "box", "options": options});
            let refused = wanted(&serde_json::from_value(create).unwrap()).unwrap_err();
            refused.message().to_owned()
        };
        for (options, begin) in [
            (
                json!({"memory": "lots"}),
                "option `memory` can't be `lots`: ",
            ),
            (json!({"cpus": 65}), "option `cpus` can't be `65`: "),
            (
                json!({"backend": "cloud"}),
                "option `backend` can't be `cloud`: expected one of auto, ",
            ),
            (json!({"no_such": true}), "unknown option `no-such`: "),
            (json!({"name": true}), "option `name` needs a value"),
            (json!({"backend": ""}), "option `backend` needs a value"),
            (
                json!({"vsock": ""}),
                "option `vsock` can't be ``: expected a path",
            ),
            (
                json!({"env_file": [""]}),
                "option `env-file` can't be ``: expected a path",
            ),
            (
                json!({"name": ["a", "b"]}),
                "the argument `name` cannot be used multiple times",
            ),
            (
                json!({"read_only": "perhaps"}),
                "option `read-only` can't be `perhaps`: expected true or false",
            ),
            (
                json!({"volume": ["v:/a", "v"]}),
                "option `volume` can't be `v`: `v`: the path is not absolute",
            ),
            (json!({"env": [["a"]]}), "`env` must be a string"),
            (json!({"gpus": "all"}), "`--gpus` is not supported: "),
            (
                json!({"net": "host"}),
                "`--network host` is not supported: ",
            ),
            (
                json!({"memory_swap": "x"}),
                "option `memory-swap` can't be `x`: ",
            ),
            (
                json!({"from": "x", "upper": "disk"}),
                "the argument `from` cannot be used with",
            ),
        ] {
            let message = message(options);
            assert!(message.starts_with(begin), "{message}");
            assert_eq!(message.trim(), message);
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn rules_for_addresses_that_nothing_else_reaches_take_the_network() {
        let taken = |rule: &str| {
            let create = json!({"image": "box", "options": {"net-allow": rule}});
            let wanted = wanted(&serde_json::from_value(create).unwrap()).unwrap();
            let taken: Vec<_> = wanted.taken().map(|(_, taken)| taken).collect();
            taken
        };
        for (rule, what) in [
            ("127.0.0.1:80", "127.0.0.1/32:80"),
            ("169.254.0.0/16", "169.254.0.0/16"),
        ] {
            assert_eq!(taken(rule), [Taken::Network(what.to_owned())]);
        }
        for open in ["*.example.com", "0.0.0.0/0"] {
            assert_eq!(taken(open), [Taken::Nothing], "{open}");
        }
    }
}
