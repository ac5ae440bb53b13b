//! The API: sandboxes as wholes, snapshots and templates.

mod create;
mod fork;
mod lifecycle;
mod list;
mod make;
mod metrics;
mod network;
mod once;
mod query;
mod snapshots;
mod templates;
mod view;

use std::sync::Arc;

use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::Server;
use super::delivery::Client;
use super::http::{Answer, blocking, read};
use super::incoming::Incoming;
use super::problem::{Kind, Problem};
use super::sandbox::{self, Served};
pub use lifecycle::end;
pub use once::Keys;
use query::Query;

/// Answers a request of a client that has the key.
pub async fn answer(server: Arc<Server>, head: Parts, body: Incoming, client: Client) -> Answer {
    let answered = call(server, head, body, client).await;
    answered.map_err(|problem| match problem.kind {
        // It was there when it was looked for.
        Kind::Gone => Problem::not_found(problem.message),
        _ => problem,
    })
}

async fn call(server: Arc<Server>, head: Parts, body: Incoming, client: Client) -> Answer {
    let path = head.uri.path().trim_matches('/').to_owned();
    let path: Vec<String> = path.split('/').map(decoded).collect::<Result<_, _>>()?;
    let mut path: Vec<&str> = path.iter().map(String::as_str).collect();
    // All versions of a call take the same fields here.
    if path
        .first()
        .is_some_and(|first| ["v2", "v3"].contains(first))
    {
        path.remove(0);
    }
    let has_query = matches!(
        (head.method.as_str(), path.as_slice()),
        (
            "GET",
            ["sandboxes" | "snapshots" | "templates"] | ["sandboxes", .., "metrics"]
        )
    );
    if !has_query {
        Query::of(&head.uri, &[])?;
    }
    match (head.method.as_str(), path.as_slice()) {
        ("POST", ["sandboxes"]) => {
            create::create(&server, &head.headers, read(body).await?, client).await
        }
        ("GET", ["sandboxes"]) => list::list(&server, &head.uri).await,
        ("GET", ["sandboxes", "metrics"]) => metrics::of_many(&server, &head.uri).await,
        ("GET", ["sandboxes", id]) => {
            let served = server.found(id).await?;
            blocking(move || Ok(view::detail(&server, &served))).await
        }
        ("DELETE", ["sandboxes", id]) => lifecycle::kill(&server, id).await,
        ("POST", ["sandboxes", id, "timeout"]) => {
            lifecycle::timeout(&server, id, read(body).await?).await
        }
        ("POST", ["sandboxes", id, "refreshes"]) => {
            lifecycle::refresh(&server, id, read(body).await?).await
        }
        ("POST", ["sandboxes", id, "pause"]) => {
            lifecycle::pause(&server, id, read(body).await?).await
        }
        ("POST", ["sandboxes", id, "connect" | "resume"]) => {
            lifecycle::connect(&server, id, read(body).await?).await
        }
        ("POST", ["sandboxes", id, "fork"]) => fork::fork(&server, id, read(body).await?).await,
        ("POST", ["sandboxes", id, "snapshots"]) => {
            snapshots::create(&server, id, read(body).await?).await
        }
        ("GET", ["sandboxes", id, "metrics"]) => metrics::of_one(&server, id, &head.uri).await,
        ("GET", ["snapshots"]) => snapshots::list(&server, &head.uri).await,
        ("GET", ["templates"]) => templates::list(&server, &head.uri).await,
        ("GET", ["templates", "aliases", name]) => templates::find(&server, name).await,
        ("DELETE", ["templates", name]) => snapshots::remove(&server, name).await,
        (method, path) => Err(Problem::unsupported(format!(
            "this server does not do {method} /{}",
            path.join("/")
        ))),
    }
}

fn decoded(part: &str) -> Result<String, Problem> {
    let text = percent_decode_str(part).decode_utf8();
    let text = text.map_err(|_| Problem::invalid("the path is not UTF-8"))?;
    Ok(text.into_owned())
}

impl Server {
    /// Finds a sandbox, running or paused.
    async fn found(&self, id: &str) -> Result<Served, Problem> {
        let (all, id) = (self.sandboxes.clone(), id.to_owned());
        blocking(move || sandbox::find(&all, &id)).await
    }
}
