//! `mica serve --e2b`: E2B's API, for its own clients, with sandboxes of this machine.
//!
//! [`route`] decides whom a request is for: the API ([`rest`]), or what E2B's clients expect at two ports of a
//! sandbox ([`envd`], [`code`]), or a port of a program in it ([`ports`]). The sandboxes are detached ones, and what
//! E2B has that mica has not is in a label of theirs ([`label`]): another server finds all of it. What blocks is
//! done in a thread; the rest shares one. How much of anything clients may use is in [`places`] and [`micabox_listen`].

mod call;
mod code;
mod connect;
mod deadline;
mod delivery;
mod envd;
pub mod fuzzing;
mod http;
mod incoming;
mod json;
mod label;
mod life;
mod list;
mod map;
mod options;
mod owners;
mod places;
mod ports;
mod problem;
mod query;
mod rest;
mod route;
mod sandbox;
mod saved;
mod serve;
mod server;
mod template;
mod token;

use std::sync::Arc;
use std::time::Duration;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::serving::{E2bArgs, Registries};
use micabox_program::settings;

use code::Contexts;
use deadline::Deadlines;
use envd::Watchers;
use options::Options;
use places::Bounds;
use sandbox::Ending;
use server::Server;
use template::Templates;
use token::Key;

/// Serves until a signal ends this process. The sandboxes go on.
pub fn execute(args: E2bArgs) -> Outcome {
    micabox::fork_processes();
    // A terminal's Ctrl-C is for this process alone: the sandboxes' owners are not of its group.
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let key = Key::of(sandboxes.store().root())?;
    let options = Options::new(args.with)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // What a rush of requests has needed is not kept.
        .thread_keep_alive(Duration::from_secs(1))
        .build()
        .map_err(|error| Failure::of(&error).context("starting the server"))?;
    let served = runtime.block_on(async {
        let listener = serve::listen(args.listen).await?;
        let address = listener.local_addr().map_err(|e| Failure::of(&e))?;
        let server = Server {
            sandboxes,
            key,
            templates: Templates::new(args.template),
            registries: Registries::new(args.allow_registry),
            options,
            domain: format!("localhost:{}", address.port()),
            processes: Arc::default(),
            watchers: Watchers::default(),
            contexts: Contexts::default(),
            deadlines: Deadlines::default(),
            ending: Ending::default(),
            keys: rest::Keys::default(),
            bounds: Bounds::default(),
        };
        serve::serve(server, listener, address).await
    });
    // Threads that wait for sandboxes end with the process.
    runtime.shutdown_background();
    served?;
    Ok(0)
}
