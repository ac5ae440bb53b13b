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
mod list;
mod map;
mod options;
mod places;
mod ports;
mod problem;
mod query;
mod rest;
mod route;
mod sandbox;
mod saved;
mod serve;
mod template;
mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use micabox::Sandboxes;
use serde_json::Value;

use crate::failure::Failure;
use crate::registries::{self, Registries};
use crate::{Outcome, settings};
use code::Contexts;
use deadline::Deadlines;
use envd::{Processes, Watchers};
use options::Options;
use places::Bounds;
use sandbox::Ending;
use template::Templates;
use token::Key;

/// Where it listens unless told otherwise: where E2B's clients look for an API of this machine.
const LISTEN: &str = "127.0.0.1:3000";

/// The limit on descriptors, where this process may set it: connections, and pipes of commands.
const DESCRIPTORS: u64 = 16 << 10;

/// The flags beside `--e2b`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address and port; 0 takes a free port
    #[arg(long, value_name = "IP:PORT", default_value = LISTEN, requires = "e2b")]
    listen: SocketAddr,

    /// Another image for a template's name, or a snapshot; a template without one is the image of this name, or a
    /// snapshot that a client has made
    #[arg(long, value_name = "NAME=IMAGE", value_parser = template::pair, requires = "e2b")]
    template: Vec<(String, String)>,

    /// Allow clients to have images of this registry pulled; may be repeated. Docker Hub is allowed, and so are
    /// registries that the settings file names, unless they are at a loopback or private address, and images that
    /// --template names [ghcr.io, localhost:5000]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = registries::name, requires = "e2b")]
    allow_registry: Vec<String>,

    /// An option of `mica run` for all sandboxes, without dashes [backend=host, memory=2g, upper=disk]
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = option, requires = "e2b")]
    with: Vec<(String, Value)>,
}

/// What all requests share.
#[derive(Debug)]
struct Server {
    sandboxes: Sandboxes,
    key: Key,
    templates: Templates,
    /// Whose images clients may have pulled.
    registries: Registries,
    /// Options of every sandbox.
    options: Options,
    /// What a sandbox's host names end with.
    domain: String,
    processes: Arc<Processes>,
    watchers: Watchers,
    contexts: Contexts,
    deadlines: Deadlines,
    ending: Ending,
    /// Keys of requests for sandboxes that are under way.
    keys: rest::Keys,
    bounds: Bounds,
}

/// Serves until a signal ends this process. The sandboxes go on.
pub fn execute(args: Args) -> Outcome {
    micabox::fork_processes();
    crate::raise_descriptor_limit(DESCRIPTORS);
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

fn option(text: &str) -> Result<(String, Value), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Value::from(value)),
        None => (text, Value::Bool(true)),
    };
    if name.is_empty() || name.starts_with('-') {
        return Err("name an option without dashes, as in memory=2g".to_owned());
    }
    Ok((name.to_owned(), value))
}
