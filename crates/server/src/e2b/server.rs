//! The server that all requests share.

use std::sync::Arc;

use micabox::Sandboxes;

use super::code::Contexts;
use super::deadline::Deadlines;
use super::envd::{Processes, Watchers};
use super::http::blocking;
use super::options::Options;
use super::places::Bounds;
use super::problem::Problem;
use super::rest::Keys;
use super::sandbox::{self, Ending, Served};
use super::template::Templates;
use super::token::Key;
use micabox_program::serving::Registries;

/// What all requests share.
#[derive(Debug)]
pub struct Server {
    pub(super) sandboxes: Sandboxes,
    pub(super) key: Key,
    pub(super) templates: Templates,
    /// Whose images clients may have pulled.
    pub(super) registries: Registries,
    /// Options of every sandbox.
    pub(super) options: Options,
    /// What a sandbox's host names end with.
    pub(super) domain: String,
    pub(super) processes: Arc<Processes>,
    pub(super) watchers: Watchers,
    pub(super) contexts: Contexts,
    pub(super) deadlines: Deadlines,
    pub(super) ending: Ending,
    /// Keys of requests for sandboxes that are under way.
    pub(super) keys: Keys,
    pub(super) bounds: Bounds,
}

impl Server {
    /// Finds a sandbox, running or paused.
    pub async fn found(&self, id: &str) -> Result<Served, Problem> {
        let (all, id) = (self.sandboxes.clone(), id.to_owned());
        blocking(move || sandbox::find(&all, &id)).await
    }

    /// Returns whether a sandbox is being ended.
    pub fn is_ending(&self, id: &str) -> bool {
        self.ending.has(id)
    }
}
