//! What a sandbox is made from: an image, or a snapshot. A client's own snapshots are templates, and those that the
//! server's flags name.

use std::sync::Arc;

use micabox::{Cancel, NetRules, Network, Reference, Sandbox, Sandboxes, Snapshot};
use micabox_image::progress::{Progress, Silent};
use micabox_transfer::Settings;
use serde_json::{Map, Value};

use super::network::{self, Wish};
use crate::e2b::Server;
use crate::e2b::label::{self, Label};
use crate::e2b::problem::Problem;
use crate::e2b::saved::{self, Saved};
use crate::failure::Failure;
use crate::registries::Registries;
use crate::run::{Bound, Pulls};
use crate::serve::message::Create;
use crate::serve::{flags, sandboxes};

/// Options about how an image becomes a sandbox's root, which a snapshot's is already.
const OF_IMAGES: [&str; 5] = ["upper", "pull", "lazy", "platform", "trim"];

/// Options that a machine has from its start on.
const OF_MACHINES: [&str; 26] = [
    "cap-add",
    "cap-drop",
    "cold",
    "cpus",
    "env",
    "env-file",
    "group-add",
    "init",
    "memory",
    "mkdir",
    "mount",
    "nested-virtualization",
    "patch",
    "patch-tar",
    "pids-limit",
    "read-only",
    "remove",
    "root",
    "shm-size",
    "symlink",
    "tmpfs",
    "transport",
    "ulimit",
    "user",
    "volume",
    "workdir",
];

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
    /// The server's options, and the client's.
    pub options: Map<String, Value>,
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
                 `mica serve --e2b --allow-registry {}`",
                image.registry()
            ))
            .hint("the user may also `mica pull` this image")
        })
    }
}

impl Plan {
    /// Makes the sandbox. It ends with this process until it is detached.
    pub fn make(mut self, all: &Sandboxes, cancel: Cancel) -> Result<Sandbox, Problem> {
        let mut bound = None;
        let image = match &self.source {
            Source::Image(name) => {
                let image = name.parse::<Reference>();
                let image = image
                    .map_err(|error| Problem::invalid(format!("the template's name: {error}")))?;
                bound = self
                    .registries
                    .take()
                    .map(|registries| OfClient { image, registries });
                Some(name.clone())
            }
            Source::Snapshot(snapshot) => {
                let snapshot = (**snapshot).clone();
                for name in OF_IMAGES {
                    self.options.remove(name);
                }
                self.continue_from(&snapshot)?;
                self.options.insert("from".to_owned(), snapshot.name.into());
                None
            }
        };
        let narrower = self
            .network
            .clone()
            .apply(self.label.internet, &mut self.options)?;
        add(&mut self.options, "env", self.variables);
        let label = format!("{}={}", label::NAME, self.label.text()?);
        add(&mut self.options, "label", vec![label]);
        let create = Create {
            image,
            options: self.options,
        };
        make(&create, narrower, bound.as_ref(), cancel).map_err(|failure| {
            let is_missing = |name: &String| all.store().image(name).is_err();
            match create.image.as_ref().filter(|name| is_missing(name)) {
                Some(name) => Problem::not_found(format!(
                    "no template {name} is here, and it can't be pulled: {}",
                    failure.message()
                )),
                None => failure.into(),
            }
        })
    }

    /// Fits the options to a machine that continues where it was: with what it has, or not at all.
    fn continue_from(&mut self, snapshot: &Snapshot) -> Result<(), Problem> {
        let Some(machine) = &snapshot.memory else {
            return Ok(());
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
        for name in OF_MACHINES {
            match (self.options.remove(name), with.get(name)) {
                (Some(value), Some(before)) if value == *before => {}
                (Some(_), _) => return Err(late(&format!("this server's option `{name}`"))),
                (None, _) => {}
            }
        }
        let has_none = machine.spec.network == Network::None;
        let asks_for_none = self.network == Wish::Nothing || network::is_none(&self.options);
        let asks_for_some =
            matches!(self.network, Wish::Some(_)) || self.label.internet == Some(true);
        match (has_none, asks_for_none, asks_for_some) {
            (true, false, true) => Err(late(
                "a network (network, allow_internet_access), which it has none of,",
            )),
            (true, ..) => {
                network::take(&mut self.options);
                self.network = Wish::Nothing;
                self.label.internet = Some(false);
                Ok(())
            }
            (false, true, _) => Err(late(
                "a sandbox without its network (network, allow_internet_access)",
            )),
            (false, ..) => Ok(()),
        }
    }
}

/// Checks that a copy of a sandbox, which has what the original was made with, has no more than this server's sandboxes.
pub fn check_copy(label: &Label, options: &Map<String, Value>) -> Result<(), Problem> {
    let is_same = |name: &str, value: &Value| {
        // What is set anew, or is about images.
        name == "idle-timeout"
            || OF_IMAGES.contains(&name)
            || label.options.get(name) == Some(value)
    };
    match options.iter().find(|(name, value)| !is_same(name, value)) {
        None => Ok(()),
        Some((name, _)) => Err(Problem::invalid(format!(
            "the sandbox was made with another value of this server's option `{name}`, which comes too late for a copy"
        ))),
    }
}

/// Adds values to an option that may have some.
fn add(options: &mut Map<String, Value>, name: &str, values: Vec<String>) {
    if values.is_empty() {
        return;
    }
    let mut all = match options.remove(name) {
        Some(Value::Array(values)) => values,
        Some(value) => vec![value],
        None => Vec::new(),
    };
    all.extend(values.into_iter().map(Value::from));
    options.insert(name.to_owned(), all.into());
}

fn make(
    create: &Create,
    narrower: NetRules,
    bound: Option<&OfClient>,
    cancel: Cancel,
) -> Result<Sandbox, Failure> {
    let mut wanted = flags::parse(create)?;
    wanted.sandbox.net_narrower = Some(narrower);
    let told: Arc<dyn Progress> = Arc::new(Silent);
    let pulls = Pulls {
        told: Some(&told),
        bound: bound.map(|bound| bound as &dyn Bound),
    };
    sandboxes::create_with(&wanted, cancel, pulls)
}

#[cfg(test)]
mod tests {
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
            options: options.as_object().unwrap().clone(),
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
        some.continue_from(&with).unwrap();
        let own = json!({"net-allow": "1.1.1.1", "idle-timeout": "1h"});
        assert_eq!(Value::from(some.options), own);
        assert_eq!(some.network, narrowed());
        // A machine without a network has none, and says so.
        let without = snapshot(false, &options);
        let mut none = plan(&options, None, Wish::Any);
        none.continue_from(&without).unwrap();
        let own = json!({"net": "none", "idle-timeout": "1h"});
        assert_eq!(Value::from(none.options), own);
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
