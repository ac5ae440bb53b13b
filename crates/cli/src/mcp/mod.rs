//! `mica mcp`: the Model Context Protocol, by which programs with a language model use sandboxes.
//!
//! [`service`] is the protocol's side: it turns requests into calls of tools and reads of resources. A
//! [`tool`] is a type of arguments that does its work with mica's blocking SDK, in a thread; what it
//! needs of the protocol is a [`call`]. Nothing but the protocol's side runs in the asynchronous runtime.

mod allowed;
mod call;
mod command;
mod excerpt;
mod files;
mod images;
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

use crate::failure::Failure;
use crate::output::write_stderr;
use crate::serve::held::Held;
use crate::{Outcome, settings};
use allowed::Allowed;
use service::Service;

/// Give a program with a language model tools to make and use sandboxes (MCP, on stdin and stdout)
///
/// A client names it in its configuration as {"command": "mica", "args": ["mcp"]}. The sandboxes that it
/// makes end with it, unless the tool keep_sandbox was used. Its tools make sandboxes as `mica run` does, but
/// give them no file, folder or variable of this machine and no share of its kernel unless flags allow that.
/// They use all sandboxes of this user, those that other programs have made with more included.
#[derive(Clone, Copy, Debug, clap::Args)]
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
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|error| Failure::of(&error).context("starting the server"))?;
    let service = Service::new(Arc::clone(&server));
    let served = runtime.block_on(async {
        // Nothing but messages may be on stdout, whose control characters JSON escapes.
        let streams = (tokio::io::stdin(), tokio::io::stdout());
        match service.serve(streams).await {
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
