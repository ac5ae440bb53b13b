//! What E2B's server in a sandbox does for its clients: commands, files, changes of files.

mod accounts;
mod entry;
mod events;
mod filesystem;
mod kept;
mod login;
mod output;
mod parts;
mod process;
mod table;
mod transfer;
mod upload;
mod watch;
mod watchers;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use hyper::header::AUTHORIZATION;

use super::connect;
use super::http::{Answer, Request};
use super::problem::{Kind, Problem};
use super::query::Query;
use super::sandbox::Served;
use crate::e2b::server::Server;

pub use accounts::Caller;
pub use parts::{HEAD, PIECE, Parts};
pub use table::{Processes, WINDOW};
pub use watchers::Watchers;

/// The path of files' contents.
pub const FILES: &str = "/files";

/// Answers a request whose client may.
pub async fn answer(server: Arc<Server>, served: Served, request: Request) -> Answer {
    let path = request.uri().path().to_owned();
    if path == FILES {
        return match *request.method() {
            Method::GET => transfer::download(&server, served, request).await,
            Method::POST => upload::upload(&server, served, request).await,
            _ => Err(Problem::unsupported("files are read and written")),
        };
    }
    if request.method() != Method::POST {
        return Err(Problem::unsupported(format!("there is no {path}")));
    }
    Query::of(request.uri(), &[])?;
    let user = user(&request)?;
    match path.strip_prefix("/process.Process/") {
        Some(call) => process::answer(server, served, user, call, request).await,
        None => match path.strip_prefix("/filesystem.Filesystem/") {
            Some(call) => filesystem::answer(server, served, user, call, request).await,
            None => connect::unknown(&path),
        },
    }
}

/// The user that a client names, in place of the image's.
fn user(request: &Request) -> Result<Option<String>, Problem> {
    let Some(given) = request.headers().get(AUTHORIZATION) else {
        return Ok(None);
    };
    let wrong = || Problem::new(Kind::Unauthenticated, "the user's name is not as expected");
    let text = given.to_str().map_err(|_| wrong())?;
    let encoded = text.strip_prefix("Basic ").ok_or_else(wrong)?;
    let decoded = STANDARD.decode(encoded).map_err(|_| wrong())?;
    let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
    let name = decoded.split(':').next().unwrap_or_default();
    accounts::checked(name).map(Some)
}
