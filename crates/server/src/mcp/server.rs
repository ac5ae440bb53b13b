//! The server that all calls share.

use std::sync::Arc;

use micabox::{Command, Error, Overrides, SandboxRef, Sandboxes};
use micabox_async::blocking;
use tokio::sync::Semaphore;

use super::allowed::Allowed;
use super::background::Background;
use super::made::{Made, Places};
use micabox_creation::Held;
use micabox_program::failure::Failure;

/// Most commands that run at a time, in the background and not: fewer than calls, so that these are left for what is
/// quick.
pub const COMMANDS: usize = 128;

/// What all calls share.
#[derive(Debug)]
pub struct Server {
    pub(super) sandboxes: Sandboxes,
    /// The sandboxes that end with the server.
    pub(super) held: Held,
    /// What they may have of this machine.
    pub(super) allowed: Allowed,
    /// How many the session has made.
    pub(super) made: Made,
    /// A place for each command that may run.
    pub(super) commands: Arc<Semaphore>,
    pub(super) background: Background,
}

impl Server {
    /// Finds a sandbox by its name or ID.
    pub fn sandbox(&self, name: &str) -> Result<SandboxRef, Failure> {
        Ok(self.sandboxes.get(name)?)
    }

    /// Finds a sandbox that runs, with a connection to its owner, and makes a command of it.
    pub async fn command(
        &self,
        name: String,
        overrides: Overrides,
    ) -> Result<(micabox_async::Sandbox, Command), Failure> {
        let all = self.sandboxes.clone();
        let found = blocking(move || {
            let found = all.get(&name)?;
            let command = found.command(&overrides)?;
            Ok::<_, Error>((found, command))
        });
        let (found, command) = found.await?;
        Ok((micabox_async::Sandbox::of(found).await?, command))
    }

    /// Takes places for new sandboxes. Fails if that were too many.
    pub fn reserve(&self, count: usize) -> Result<Places<'_>, Failure> {
        self.made.reserve(count, &self.sandboxes, &self.held)
    }
}
