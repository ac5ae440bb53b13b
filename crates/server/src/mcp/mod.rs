//! `mica mcp`: the Model Context Protocol, by which programs with a language model use sandboxes.
//!
//! [`lines`] reads messages, and answers what is none. [`service`] is the protocol's side: it turns requests into calls
//! of tools and reads of resources. A
//! [`tool`] is a type of arguments that does its work with mica's SDK: what blocks in a thread, and commands, which
//! wait, without one. What it needs of the protocol is a [`call`].

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
mod output;
mod progress;
mod ran;
mod resources;
mod running;
mod sandboxes;
mod server;
mod service;
mod tool;
mod tools;

use std::sync::Arc;

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio::sync::Semaphore;

use micabox_creation::Held;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::write_stderr;
use micabox_program::serving::McpArgs;
use micabox_program::settings;

use allowed::Allowed;
use background::Background;
use lines::Lines;
use made::Made;
use server::{COMMANDS, Server};
use service::Service;

/// Serves the client until stdin ends, and what runs then for a few seconds more.
pub fn execute(args: McpArgs) -> Outcome {
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
        allowed: Allowed(args),
        made: Made::default(),
        commands: Arc::new(Semaphore::new(COMMANDS)),
        background: Background::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::of(&error).context("starting the server"))?;
    let served = runtime.block_on(async {
        // Nothing but messages may be on stdout, whose control characters JSON escapes.
        let (lines, writer) = Lines::new(tokio::io::stdin(), tokio::io::stdout());
        let service = Service::new(Arc::clone(&server), lines.open());
        let served = match service.serve(lines).await {
            Ok(running) => running
                .waiting()
                .await
                .map(drop)
                .map_err(|e| Failure::of(&e)),
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(Failure::of(&error)),
        };
        writer.end().await;
        served
    });
    server.held.end();
    // Threads that still work end with the process, and their commands with them.
    runtime.shutdown_background();
    served.map_err(|failure| failure.context("serving"))?;
    Ok(0)
}
