//! The tools for sandboxes as wholes: list, keep, copy, stop.

use std::collections::BTreeMap;
use std::time::Duration;

use micabox::{DEFAULT_GRACE, Record};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::tool::{Effect, InAThread, Tool};
use crate::mcp::server::Server;
use micabox_program::failure::Failure;

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct ListSandboxes {
    /// Whether to list those that have ended, too.
    #[serde(default)]
    all: bool,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Listed {
    /// The sandboxes, oldest first.
    sandboxes: Vec<Summary>,
}

/// A sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Summary {
    /// Its ID.
    id: String,
    /// Its name.
    name: String,
    /// What it was made from.
    image: String,
    /// Its first command.
    command: String,
    /// running, paused, exited and so on.
    status: String,
    /// Memory in MiB.
    memory_mib: u32,
    /// Processors.
    cpus: u8,
    /// Its ports that are published on this machine.
    ports: Vec<String>,
    /// Its labels.
    labels: BTreeMap<String, String>,
    /// Whether it ends with this session.
    ends_with_session: bool,
}

impl Summary {
    fn new(record: Record, server: &Server) -> Self {
        let (ports, cpus) = (record.published.iter(), record.cpus());
        Self {
            ends_with_session: server.held.has(&record.id),
            image: record.base.to_string(),
            status: record.status.to_string(),
            ports: ports.map(ToString::to_string).collect(),
            id: record.id,
            name: record.name,
            command: record.command,
            memory_mib: record.spec.machine.memory_mib,
            cpus,
            labels: record.spec.labels,
        }
    }
}

impl Tool for ListSandboxes {
    const NAME: &'static str = "list_sandboxes";
    const DESCRIPTION: &'static str = "Lists sandboxes, those of other programs too.";
    const EFFECT: Effect = Effect::Reads;
    type Output = Listed;
}

impl InAThread for ListSandboxes {
    fn call(self, server: &Server, _call: &Call) -> Result<Listed, Failure> {
        let all = server.sandboxes.list()?.into_iter();
        let listed = all.filter(|record| self.all || record.status.is_live());
        Ok(Listed {
            sandboxes: listed.map(|record| Summary::new(record, server)).collect(),
        })
    }
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct SnapshotSandbox {
    /// Name or ID of a sandbox.
    sandbox: String,
    /// Name of the snapshot.
    name: String,
    /// Whether to save memory and processes of a running sandbox, too (KVM): for `mica run -d --from NAME`.
    /// Otherwise its disk is copied: that of a sandbox made with the option `upper` as "disk".
    #[serde(default)]
    memory: bool,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Saved {
    /// Name of the snapshot.
    snapshot: String,
    /// What the copy may lack.
    warnings: Vec<String>,
}

impl Tool for SnapshotSandbox {
    const NAME: &'static str = "snapshot_sandbox";
    const DESCRIPTION: &'static str = "Saves a copy of a sandbox's disk, from which create_sandbox makes others \
        with the option `from`. It stays until `mica snapshot rm` removes it.";
    const EFFECT: Effect = Effect::Adds;
    type Output = Saved;
}

impl InAThread for SnapshotSandbox {
    fn call(self, server: &Server, _call: &Call) -> Result<Saved, Failure> {
        let sandbox = server.sandbox(&self.sandbox)?;
        let (snapshot, mut warnings) = (self.name, Vec::new());
        if self.memory {
            sandbox.snapshot_with_memory(&snapshot)?;
        } else if sandbox.snapshot(&snapshot)?.1.damaged {
            warnings.push("the disk is marked as having errors".to_owned());
        }
        Ok(Saved { snapshot, warnings })
    }
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct StopSandbox {
    /// Name or ID of a sandbox.
    sandbox: String,
    /// Seconds that its commands have to end: 10 unless given.
    grace: Option<u16>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Stopped {
    /// Why it had to be killed, if it had to.
    killed: Option<String>,
}

impl Tool for StopSandbox {
    const NAME: &'static str = "stop_sandbox";
    const DESCRIPTION: &'static str =
        "Ends a sandbox. What is in its memory is lost; a disk is kept.";
    const EFFECT: Effect = Effect::Changes;
    type Output = Stopped;
}

impl InAThread for StopSandbox {
    fn call(self, server: &Server, _call: &Call) -> Result<Stopped, Failure> {
        let grace = self
            .grace
            .map(|seconds| Duration::from_secs(seconds.into()));
        let sandbox = server.sandbox(&self.sandbox)?;
        let stopped = sandbox.stop(grace.unwrap_or(DEFAULT_GRACE))?;
        Ok(Stopped {
            killed: stopped.killed.map(|why| why.to_string()),
        })
    }
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct KeepSandbox {
    /// Name or ID of a running sandbox.
    sandbox: String,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Kept {
    /// Its ID.
    id: String,
    /// Its name: `mica exec NAME` uses it, and `mica stop NAME` ends it.
    name: String,
}

impl Tool for KeepSandbox {
    const NAME: &'static str = "keep_sandbox";
    const DESCRIPTION: &'static str =
        "Lets a sandbox of this session go on after it, until it is stopped.";
    const EFFECT: Effect = Effect::Changes;
    type Output = Kept;
}

impl InAThread for KeepSandbox {
    fn call(self, server: &Server, _call: &Call) -> Result<Kept, Failure> {
        let sandbox = server.sandbox(&self.sandbox)?;
        let kept = server.held.detach(sandbox.id());
        kept.map_err(|failure| failure.hint("others do not end with this session"))?;
        server.made.keep(sandbox.id());
        Ok(Kept {
            id: sandbox.id().to_owned(),
            name: sandbox.record().name.clone(),
        })
    }
}
