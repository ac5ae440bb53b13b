//! What a sandbox is made from: an image, or a snapshot. A client's own snapshots are templates, and those that the
//! server's flags name.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use micabox::words::Period;
use micabox::{Cancel, Network, Reference, Sandbox, Sandboxes, Snapshot};
use micabox_image::progress::{Progress, Silent};
use micabox_spec::options::{Net, Opt, SandboxOptions, Whose, find};
use micabox_transfer::Settings;
use serde_json::{Map, Value};

use super::network::Wish;
use crate::e2b::label::{self, Label};
use crate::e2b::problem::Problem;
use crate::e2b::saved::{self, Saved};
use crate::e2b::server::Server;
use micabox_creation::Wanted;
use micabox_creation::{Bound, Pulls};
use micabox_program::failure::Failure;
use micabox_program::serving::Registries;

/// What a sandbox is made from.
pub enum Source {
    Image(String),
    Snapshot(Box<Snapshot>),
}

impl Source {
    /// Finds what a template's name stands for.
    pub fn find(server: &Server, all: &Sandboxes, template: &str) -> Self {
        let named = server.templates.named(template);
        let snapshot = match named {
            // No client's snapshot takes the place of an image that the server's user has named.
            Some(name) if all.store().image(name).is_ok() => None,
            Some(name) => all.snapshot(name).ok(),
            None => saved::find(all, template),
        };
        match snapshot {
            Some(snapshot) => Self::Snapshot(Box::new(snapshot)),
            None => Self::Image(named.unwrap_or(template).to_owned()),
        }
    }
}

/// A sandbox to be made.
pub struct Plan {
    pub source: Source,
    pub label: Label,
    /// The server's options.
    pub given: Map<String, Value>,
    /// How long it may live.
    pub life: Duration,
    /// Variables that the client gives.
    pub variables: Vec<String>,
    pub network: Wish,
    /// Whose images may be pulled, where it is the client that has named the image.
    pub registries: Option<Registries>,
}

/// A bound to what a client may have pulled: else it would have this machine ask its own and its network's programs.
struct OfClient {
    image: Reference,
    registries: Registries,
}

impl Bound for OfClient {
    fn may_pull(&self, image: &Reference, settings: &Settings) -> Result<(), Failure> {
        if *image != self.image {
            // One that an option of the server names.
            return Ok(());
        }
        let may = self.registries.may_pull(image, settings);
        may.map_err(|what| {
            Failure::new(format!(
                "{what}, which this server does not allow: its user may start it as \
                 `mica serve --e2b --allow-registry {}`, or `mica pull` this image",
                image.registry()
            ))
        })
    }
}

impl Plan {
    /// Makes the sandbox. It ends with this process until it is detached.
    pub fn make(mut self, all: &Sandboxes, cancel: Cancel) -> Result<Sandbox, Problem> {
        let mut bound = None;
        let (image, mut options) = match &self.source {
            Source::Image(name) => {
                let image = name.parse::<Reference>();
                let image = image
                    .map_err(|error| Problem::invalid(format!("the template's name: {error}")))?;
                bound = self
                    .registries
                    .take()
                    .map(|registries| OfClient { image, registries });
                let (options, _) = micabox_creation::read(&self.given, |_| true)?;
                (Some(name.clone()), options)
            }
            Source::Snapshot(snapshot) => {
                let snapshot = (**snapshot).clone();
                let mut options = self.continue_from(&snapshot)?;
                options.files.from = Some(snapshot.name);
                (None, options)
            }
        };
        let narrower = self.network.apply(self.label.internet, &mut options)?;
        options.network.net_narrower = Some(narrower);
        let life = &mut options.life;
        life.rm = true;
        life.max_life = Some(Period(self.life));
        life.label
            .push(format!("{}={}", label::NAME, self.label.text()?));
        let variables = self.variables.into_iter().map(OsString::from);
        options.commands.env.extend(variables);
        let wanted = Wanted::new(options, image);
        make(&wanted, bound.as_ref(), cancel).map_err(|failure| {
            let is_missing = |name: &String| all.store().image(name).is_err();
            match wanted.image.as_ref().filter(|name| is_missing(name)) {
                Some(name) => Problem::not_found(format!(
                    "no template {name} is here, and it can't be pulled: {}",
                    failure.message()
                )),
                None => failure.into(),
            }
        })
    }

    /// Fits the options to what is in a snapshot: a root, and maybe a machine that continues where it was, with what it has
    /// or not at all.
    fn continue_from(&mut self, snapshot: &Snapshot) -> Result<SandboxOptions, Problem> {
        let Some(machine) = &snapshot.memory else {
            let (options, _) = micabox_creation::read(&self.given, |option| !is_of_images(option))?;
            return Ok(options);
        };
        let late = |what: &str| {
            Problem::invalid(format!(
                "the snapshot {} has a machine's memory, so {what} comes too late",
                snapshot.name
            ))
        };
        if !self.variables.is_empty() {
            return Err(late("envVars"));
        }
        let with = Saved::of(snapshot).map(|saved| saved.options);
        let with = with.unwrap_or_default();
        for (name, value) in &self.given {
            if find(name).is_some_and(is_of_machines) && with.get(name) != Some(value) {
                return Err(late(&format!("this server's option `{name}`")));
            }
        }
        let keep = |option: &Opt| !is_of_images(option) && !is_of_machines(option);
        let (mut options, _) = micabox_creation::read(&self.given, keep)?;
        let has_none = machine.spec.network == Network::None;
        let asks_for_none = self.network == Wish::Nothing || options.machine.net == Net::None;
        let asks_for_some =
            matches!(self.network, Wish::Some(_)) || self.label.internet == Some(true);
        match (has_none, asks_for_none, asks_for_some) {
            (true, false, true) => Err(late(
                "a network (network, allow_internet_access), which it has none of,",
            )),
            (true, ..) => {
                options.take_network();
                self.network = Wish::Nothing;
                self.label.internet = Some(false);
                Ok(options)
            }
            (false, true, _) => Err(late(
                "a sandbox without its network (network, allow_internet_access)",
            )),
            (false, ..) => Ok(options),
        }
    }
}

/// Returns whether an option is about how an image becomes a sandbox's root, which a snapshot's is already.
fn is_of_images(option: &Opt) -> bool {
    option.whose == Whose::Image
}

/// Returns whether a machine has what an option says from its start on.
fn is_of_machines(option: &Opt) -> bool {
    matches!(option.whose, Whose::Machine | Whose::Commands)
}

/// Checks that a copy of a sandbox, which has what the original was made with, has no more than this server's sandboxes.
pub fn check_copy(label: &Label, options: &Map<String, Value>) -> Result<(), Problem> {
    let is_same = |name: &str, value: &Value| {
        // What is set anew, or is about images.
        name == "idle-timeout"
            || find(name).is_some_and(is_of_images)
            || label.options.get(name) == Some(value)
    };
    match options.iter().find(|(name, value)| !is_same(name, value)) {
        None => Ok(()),
        Some((name, _)) => Err(Problem::invalid(format!(
            "the sandbox was made with another value of this server's option `{name}`, which comes too late for a copy"
        ))),
    }
}

fn make(wanted: &Wanted, bound: Option<&OfClient>, cancel: Cancel) -> Result<Sandbox, Failure> {
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    let pulls = Pulls {
        progress: Some(&progress),
        bound: bound.map(|bound| bound as &dyn Bound),
    };
    micabox_creation::create_with(wanted, cancel, pulls)
}

#[cfg(test)]
mod tests {
    use micabox::NetRules;
    use serde_json::json;

    use super::*;

    /// The snapshot of a machine with or without a network, of a sandbox that was made with these options.
    fn snapshot(has_network: bool, options: &Value) -> Snapshot {
        let command =
            json!({"argv": [], "env": [], "workdir": "/", "user": "", "tty": null, "stdin": false});
        let network = if has_network {
            json!({"user": {}})
        } else {
            json!("none")
        };
        let spec = json!({"command": command, "hostname": null, "transport": "auto", "root": "merged",
            "init": "Reaper", "stop_signal": null, "network": network});
        let machine = json!({"memory_mib": 256, "cpus": 1, "upper": {"kind": "tmpfs"}, "spec": spec, "main": null});
        let saved = json!({"sandbox": "0", "options": options}).to_string();
        let snapshot = json!({"name": "past", "image": {"reference": "box", "digest": ""}, "sandbox": "it",
            "created": 1, "size": 0, "memory": machine, "labels": {"e2b": saved}});
        serde_json::from_value(snapshot).unwrap()
    }

    fn plan(options: &Value, internet: Option<bool>, network: Wish) -> Plan {
        Plan {
            source: Source::Image(String::new()),
            label: Label {
                internet,
                ..Label::new("past".to_owned()).unwrap()
            },
            given: options.as_object().unwrap().clone(),
            life: Duration::from_secs(1),
            variables: Vec::new(),
            network,
            registries: None,
        }
    }

    #[test]
    fn a_copy_of_a_machine_obeys_what_its_answer_says() {
        let options = json!({"memory": "256m", "net-allow": "1.1.1.1", "idle-timeout": "1h"});
        let narrowed = || Wish::Some(NetRules::default());
        // What the machine has from its start on is the same. The rest is its copy's own.
        let with = snapshot(true, &options);
        let mut some = plan(&options, None, narrowed());
        let own = some.continue_from(&with).unwrap();
        assert_eq!(own.machine.memory(), None);
        assert_eq!(own.network.net_allow.len(), 1);
        assert!(own.life.idle_timeout.is_some());
        assert_eq!(some.network, narrowed());
        // A machine without a network has none, and says so.
        let without = snapshot(false, &options);
        let mut none = plan(&options, None, Wish::Any);
        let own = none.continue_from(&without).unwrap();
        assert_eq!(own.network(&[]), Ok(Network::None));
        assert!(own.life.idle_timeout.is_some());
        assert_eq!(none.label.internet, Some(false));

        let mut named = plan(&options, None, Wish::Any);
        named.variables = vec!["A=b".to_owned()];
        let more = json!({"memory": "512m"});
        for (mut plan, of, said) in [
            (named, &with, "envVars"),
            (plan(&more, None, Wish::Any), &with, "memory"),
            (plan(&json!({"env": "A=b"}), None, Wish::Any), &with, "env"),
            (
                plan(&options, Some(false), Wish::Nothing),
                &with,
                "allow_internet_access",
            ),
            (
                plan(&json!({"net": "none"}), None, Wish::Any),
                &with,
                "network",
            ),
            (
                plan(&options, Some(true), Wish::Any),
                &without,
                "allow_internet_access",
            ),
            (plan(&options, None, narrowed()), &without, "network"),
        ] {
            let problem = plan.continue_from(of).unwrap_err();
            assert_eq!(problem.kind.status(), 400, "{}", problem.message);
            assert!(problem.message.contains(said), "{}", problem.message);
        }
    }

    #[test]
    fn a_copy_of_what_was_made_with_other_options_is_refused() {
        let label = |options: Value| Label {
            options: options.as_object().unwrap().clone(),
            ..Label::new("box".to_owned()).unwrap()
        };
        let now = json!({"memory": "256m", "net-deny": "10.0.0.0/8", "idle-timeout": "1h", "upper": "disk"});
        let now = now.as_object().unwrap();
        let same = json!({"memory": "256m", "net-deny": "10.0.0.0/8", "cpus": "1"});
        check_copy(&label(same), now).unwrap();
        for (before, name) in [
            (json!({"memory": "256m"}), "`net-deny`"),
            (
                json!({"memory": "512m", "net-deny": "10.0.0.0/8"}),
                "`memory`",
            ),
        ] {
            let problem = check_copy(&label(before), now).unwrap_err();
            assert_eq!(problem.kind.status(), 400);
            assert!(problem.message.contains(name), "{}", problem.message);
        }
    }
}
