//! The tools that make sandboxes.

use std::collections::BTreeMap;

use micabox::{Cancel, Sandbox};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::call::Call;
use super::progress::of_pulls;
use super::tool::{Effect, InAThread, Tool};
use crate::mcp::server::Server;
use micabox_creation::Create;
use micabox_creation::Pulls;
use micabox_program::failure::Failure;

/// Most copies that are made at a time.
const COPIES: u16 = 64;

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// The image, as Docker names it: python:3.12-slim. It is pulled if it is not on this machine: from Docker Hub, or
    /// from a registry that the user has named. None with the option `from` or `root-disk`.
    image: Option<String>,
    /// Name of the sandbox; a random one unless given.
    name: Option<String>,
    /// Memory: 512m, 2g; 1g unless given.
    memory: Option<String>,
    /// Processors; a fraction limits their time.
    cpus: Option<f64>,
    /// Variables of the environment of all commands.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Whether the sandbox has a network; true unless given.
    network: Option<bool>,
    /// Volumes to mount, which are made if missing: VOLUME:PATH, with :ro read-only. HOST-FOLDER:PATH mounts a
    /// folder of this machine, if the server was started with --allow-host-paths.
    #[serde(default)]
    volumes: Vec<String>,
    /// Other long options of `mica run` by name, such as {"upper": "disk:8g", "net-allow": ["*.debian.org"],
    /// "from": "SNAPSHOT"}: true, a string, a number, a list of these, or an object of names and values. Those that
    /// take something from this machine need a server that was started with a flag: files or variables with
    /// --allow-host-paths, its kernel ("backend": "host", "nested-virtualization") with --allow-host-backend, its
    /// own addresses ("net-allow") and resolvers ("dns") with --allow-host-network, its ports ("publish") with
    /// --allow-publish.
    #[serde(default)]
    options: Map<String, Value>,
}

/// A new sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct New {
    /// Its ID.
    id: String,
    /// Its name, which other tools take as well.
    name: String,
}

impl Tool for CreateSandbox {
    const NAME: &'static str = "create_sandbox";
    const DESCRIPTION: &'static str = "Makes a sandbox from an image: a machine of its own, which runs nothing \
        until run_command is used. It ends with this session, or with stop_sandbox, unless keep_sandbox is \
        used. Its files are in its memory unless the option `upper` says otherwise.";
    const EFFECT: Effect = Effect::Adds;
    type Output = New;
}

impl InAThread for CreateSandbox {
    fn call(self, server: &Server, call: &Call) -> Result<New, Failure> {
        let create = Create {
            image: self.image.clone(),
            options: self.options(),
        };
        let cancel = Cancel::default();
        let cancelled = cancel.clone();
        let _watch = call.when_cancelled(move || cancelled.cancel());
        let mut wanted = micabox_creation::wanted(&create)?;
        server.allowed.bound(&mut wanted)?;
        let _places = server.reserve(1)?;
        let progress = of_pulls(call.steps());
        let pulls = Pulls {
            progress: Some(&progress),
            bound: Some(&server.allowed),
        };
        let sandbox = micabox_creation::create_with(&wanted, cancel, pulls)?;
        hold(sandbox, server, call)
    }
}

impl CreateSandbox {
    /// All as options of `mica run`.
    fn options(self) -> Map<String, Value> {
        let mut options = self.options;
        // Without changes that are kept, nothing is left to list once it has ended.
        if !["rm", "upper", "from"]
            .iter()
            .any(|name| options.contains_key(*name))
        {
            options.insert("rm".to_owned(), json!(true));
        }
        let given = [
            ("name", self.name.map(Value::from)),
            ("memory", self.memory.map(Value::from)),
            ("cpus", self.cpus.map(Value::from)),
            ("net", (self.network == Some(false)).then(|| json!("none"))),
            ("env", (!self.env.is_empty()).then(|| json!(self.env))),
            (
                "volume",
                (!self.volumes.is_empty()).then(|| json!(self.volumes)),
            ),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                options.insert(name.to_owned(), value);
            }
        }
        options
    }
}

/// Has a new sandbox end with the server.
fn hold(sandbox: Sandbox, server: &Server, call: &Call) -> Result<New, Failure> {
    if call.is_cancelled() {
        // Its client will not learn its name.
        return Err(Failure::new("cancelled"));
    }
    let new = New {
        id: sandbox.record().id.clone(),
        name: sandbox.record().name.clone(),
    };
    server.held.add(sandbox)?;
    Ok(new)
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// Name or ID of a running sandbox.
    sandbox: String,
    /// How many copies to make: 1 unless given, 64 at most.
    count: Option<u16>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Forked {
    /// The copies.
    sandboxes: Vec<New>,
}

impl Tool for ForkSandbox {
    const NAME: &'static str = "fork_sandbox";
    const DESCRIPTION: &'static str = "Makes copies of a running sandbox with its memory, processes and files. \
        The copies end as sandboxes of create_sandbox do. Needs KVM.";
    const EFFECT: Effect = Effect::Adds;
    type Output = Forked;
}

impl InAThread for ForkSandbox {
    fn call(self, server: &Server, call: &Call) -> Result<Forked, Failure> {
        let count = self.count.unwrap_or(1);
        if !(1..=COPIES).contains(&count) {
            return Err(Failure::new(format!(
                "`count` is not between 1 and {COPIES}"
            )));
        }
        let _places = server.reserve(count.into())?;
        let made = micabox_creation::fork(&server.sandboxes, &self.sandbox, count)?;
        let made = made.into_iter().map(|sandbox| hold(sandbox, server, call));
        Ok(Forked {
            sandboxes: made.collect::<Result<_, _>>()?,
        })
    }
}
