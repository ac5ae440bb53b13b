//! `mica mcp`: the Model Context Protocol, by which programs with a language model use sandboxes.
//!
//! [`lines`] reads messages, and answers what is none. [`service`] is the protocol's side: it turns requests into calls
//! of tools and reads of resources. A
//! [`tool`] is a type of arguments that does its work with mica's blocking SDK, in a thread; what it
//! needs of the protocol is a [`call`]. Nothing but the protocol's side runs in the asynchronous runtime.

mod allowed;
mod background;
mod call;
mod command;
mod excerpt;
mod files;
mod images;
mod job;
mod lines;
mod made;
mod message;
mod once;
mod progress;
mod resources;
mod running;
mod sandboxes;
mod service;
mod tool;

use std::sync::Arc;

use micabox::{SandboxRef, Sandboxes};
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio::sync::Semaphore;

use crate::failure::Failure;
use crate::output::write_stderr;
use crate::serve::held::Held;
use crate::{Outcome, settings};
use allowed::Allowed;
use background::Background;
use lines::Lines;
use made::Made;
use service::Service;

/// Most commands that run at a time, in the background and not: fewer than calls, so that these are left for what is
/// quick.
const COMMANDS: usize = 128;

/// Give a program with a language model tools to make and use sandboxes (MCP, on stdin and stdout)
///
/// A client names it in its configuration as {"command": "mica", "args": ["mcp"]}. The sandboxes that it
/// makes end with it, unless the tool keep_sandbox was used. Its tools make sandboxes as `mica run` does, but
/// give them no file, folder or variable of this machine, no share of its kernel, none of its own addresses and ports,
/// and no image of a registry that its user has not named, unless flags allow that.
/// They use all sandboxes, snapshots and volumes of this user, those that were made with more included.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    allowed: Allowed,
}

/// What all calls share.
#[derive(Debug)]
struct Server {
    sandboxes: Sandboxes,
    /// The sandboxes that end with the server.
    held: Held,
    /// What they may have of this machine.
    allowed: Allowed,
    /// How many the session has made.
    made: Made,
    /// A place for each command that may run.
    commands: Arc<Semaphore>,
    background: Background,
}

impl Server {
    fn sandbox(&self, name: &str) -> Result<SandboxRef, Failure> {
        Ok(self.sandboxes.get(name)?)
    }
}

/// Serves the client until stdin ends, and what runs then for a few seconds more.
pub fn execute(args: Args) -> Outcome {
    use std::io::IsTerminal;
    micabox::fork_processes();
    if std::io::stdin().is_terminal() {
        write_stderr(
            "mica: this is for MCP clients, which start it; it waits for their requests\n",
        );
    }
    // A terminal's Ctrl-C is the client's, which decides what ends.
    let _ = rustix::process::setsid();
    let server = Arc::new(Server {
        sandboxes: settings::sandboxes(&settings::store()?)?,
        held: Held::default(),
        allowed: args.allowed,
        made: Made::default(),
        commands: Arc::new(Semaphore::new(COMMANDS)),
        background: Background::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|error| Failure::of(&error).context("starting the server"))?;
    let served = runtime.block_on(async {
        // Nothing but messages may be on stdout, whose control characters JSON escapes.
        let lines = Lines::new(tokio::io::stdin(), tokio::io::stdout());
        let service = Service::new(Arc::clone(&server), lines.open());
        match service.serve(lines).await {
            Ok(running) => running
                .waiting()
                .await
                .map(drop)
                .map_err(|e| Failure::of(&e)),
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(Failure::of(&error)),
        }
    });
    server.held.end();
    // Threads that still work end with the process, and their commands with them.
    runtime.shutdown_background();
    served.map_err(|failure| failure.context("serving"))?;
    Ok(0)
}
