//! `mica serve`, of which `--stdio` is served by `mica` itself, and `--e2b` in `mica-server`.

use std::net::SocketAddr;

use serde_json::Value;

use super::registries;

/// Where it listens unless told otherwise: where E2B's clients look for an API of this machine.
const LISTEN: &str = "127.0.0.1:3000";

/// Serve programs, which make sandboxes and use them
///
/// With --stdio one program, for SDKs; docs/protocol.md describes what is said. The sandboxes that it makes end with
/// stdin, unless the program detaches them. With --e2b the clients of E2B, over HTTP; docs/e2b.md says what
/// works. The sandboxes that these make go on without the server.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("whom").required(true))]
pub struct ServeArgs {
    /// Serve the program at the other ends of stdin and stdout
    #[arg(long, group = "whom")]
    stdio: bool,

    /// Serve E2B's clients, which need the variables that are printed
    #[arg(long = "e2b", id = "e2b", group = "whom")]
    pub is_e2b: bool,

    /// The flags beside `--e2b`.
    #[command(flatten)]
    pub e2b: E2bArgs,
}

/// The flags beside `--e2b`.
#[derive(Debug, clap::Args)]
pub struct E2bArgs {
    /// Address and port; 0 takes a free port
    #[arg(long, value_name = "IP:PORT", default_value = LISTEN, requires = "e2b")]
    pub listen: SocketAddr,

    /// Another image for a template's name, or a snapshot; a template without one is the image of this name, or a
    /// snapshot that a client has made
    #[arg(long, value_name = "NAME=IMAGE", value_parser = pair, requires = "e2b")]
    pub template: Vec<(String, String)>,

    /// Allow clients to have images of this registry pulled; may be repeated. Docker Hub is allowed, and so are
    /// registries that the settings file names, unless they are at a loopback or private address, and images that
    /// --template names [ghcr.io, localhost:5000]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = registries::name, requires = "e2b")]
    pub allow_registry: Vec<String>,

    /// An option of `mica run` for all sandboxes, without dashes [backend=host, memory=2g, upper=disk]
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = option, requires = "e2b")]
    pub with: Vec<(String, Value)>,
}

/// Reads `NAME=IMAGE`.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, image)) if !name.is_empty() && !image.is_empty() => {
            Ok((name.to_owned(), image.to_owned()))
        }
        _ => Err("not of the form NAME=IMAGE".to_owned()),
    }
}

/// Reads `NAME` or `NAME=VALUE`, an option of sandboxes.
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
