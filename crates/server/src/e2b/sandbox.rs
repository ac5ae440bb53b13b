//! The sandboxes that are served: those with our label that run or are paused.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use micabox::{Command, Overrides, Record, SandboxRef, Sandboxes, Status};
use micabox_ground::lock;

use super::http::waiting;
use super::label::Label;
use super::problem::Problem;
use super::{options, owners};

/// A sandbox of the server's clients.
#[derive(Clone, Debug)]
pub struct Served {
    pub sandbox: SandboxRef,
    pub label: Label,
}

impl Served {
    /// Returns the sandbox if it is one of ours, and has not ended.
    pub fn of(sandbox: SandboxRef) -> Option<Self> {
        let record = sandbox.record();
        let is_there = matches!(
            record.status,
            Status::Running { .. } | Status::Paused { .. }
        );
        let label = Label::of(record).filter(|_| is_there && !record.is_orphaned())?;
        Some(Self { sandbox, label })
    }

    pub fn record(&self) -> &Record {
        self.sandbox.record()
    }

    pub fn id(&self) -> &str {
        self.sandbox.id()
    }

    /// Connects to its owner, for what is done without threads.
    pub async fn connect(&self) -> Result<micabox_async::Sandbox, Problem> {
        owners::connect(&self.sandbox).await
    }

    /// Has its owner kill it.
    pub async fn kill(&self) -> Result<(), Problem> {
        Ok(self.connect().await?.kill().await?)
    }

    /// Makes a command of it, with `overrides`.
    pub async fn command(&self, overrides: Overrides) -> Result<Command, Problem> {
        if self.record().defaults.is_some() {
            return Ok(self.sandbox.command(&overrides)?);
        }
        // One of an older version is read from its image.
        let sandbox = self.sandbox.clone();
        waiting(self.id(), move || Ok(sandbox.command(&overrides)?)).await
    }

    pub fn is_paused(&self) -> bool {
        matches!(self.record().status, Status::Paused { .. })
    }

    /// Returns whether nothing of it is left after its end that it might have to save.
    pub fn keeps_nothing(&self) -> bool {
        let spec = &self.record().spec;
        !spec.upper.is_kept() && spec.setup.mounts.is_empty()
    }

    /// MiB of memory that it may have.
    pub fn memory_mib(&self) -> u64 {
        let spec = &self.record().spec;
        options::memory_mib(spec.backend, spec.machine.memory_mib)
    }

    /// When it was made: to the millisecond, which is what clients see.
    pub fn started(&self) -> Duration {
        let record = self.record();
        let seconds = Duration::from_secs(u64::try_from(record.created).unwrap_or(0));
        seconds + Duration::from_millis(u64::from(record.created_nanos / 1_000_000))
    }

    /// Since when it runs, in seconds since 1970.
    pub fn since(&self) -> u64 {
        match self.record().status {
            Status::Running { since } | Status::Paused { since } => {
                u64::try_from(since).unwrap_or(0)
            }
            _ => 0,
        }
    }
}

/// Finds a sandbox by its ID, which may be anything that a client sent.
pub fn find(sandboxes: &Sandboxes, id: &str) -> Result<Served, Problem> {
    let unknown = || Problem::unknown_sandbox(id);
    if !is_id(id) {
        return Err(unknown());
    }
    let sandbox = sandboxes.get(id).map_err(|_| unknown())?;
    if sandbox.id() != id {
        return Err(unknown());
    }
    Served::of(sandbox).ok_or_else(unknown)
}

/// Finds all.
pub fn all(sandboxes: &Sandboxes) -> Result<Vec<Served>, Problem> {
    let records = sandboxes.list()?.into_iter();
    let ours = records.filter(|record| Label::of(record).is_some());
    let found = ours.filter_map(|record| sandboxes.get(&record.id).ok());
    Ok(found.filter_map(Served::of).collect())
}

/// The IDs of sandboxes that are being ended. Their clients, whose streams break off, are told that they are gone.
#[derive(Debug, Default)]
pub struct Ending(Mutex<HashSet<String>>);

impl Ending {
    pub fn begin(&self, id: &str) {
        self.lock().insert(id.to_owned());
    }

    pub fn over(&self, id: &str) {
        self.lock().remove(id);
    }

    pub fn has(&self, id: &str) -> bool {
        self.lock().contains(id)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        lock(&self.0)
    }
}

/// Returns whether a text has the form of an ID.
pub fn is_id(text: &str) -> bool {
    text.len() == 32
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
