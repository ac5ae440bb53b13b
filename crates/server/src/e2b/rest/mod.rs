//! The API: sandboxes as wholes, snapshots and templates.

mod create;
mod fork;
mod lifecycle;
mod list;
mod make;
mod metrics;
mod network;
mod once;
mod snapshots;
mod templates;
mod view;

use std::sync::Arc;

use hyper::Method;
use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::delivery::Client;
use super::http::{Answer, Nothing, read, waiting};
use super::incoming::Incoming;
use super::problem::{Kind, Problem};
use super::query::Query;
use crate::e2b::server::Server;
pub use once::Keys;

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
    match &head.method {
        &Method::POST => {
            Query::of(&head.uri, &[])?;
            change(&server, &path, &head, body, client).await
        }
        &Method::GET | &Method::DELETE => {
            let Nothing {} = read(body).await?;
            look(&server, &path, &head, client).await
        }
        _ => Err(unknown(&head, &path)),
    }
}

/// Answers a request with a body.
async fn change(
    server: &Arc<Server>,
    path: &[&str],
    head: &Parts,
    body: Incoming,
    client: Client,
) -> Answer {
    match path {
        ["sandboxes"] => create::create(server, &head.headers, read(body).await?, client).await,
        ["sandboxes", id, "timeout"] => lifecycle::timeout(server, id, read(body).await?).await,
        ["sandboxes", id, "refreshes"] => lifecycle::refresh(server, id, read(body).await?).await,
        ["sandboxes", id, "pause"] => lifecycle::pause(server, id, read(body).await?).await,
        ["sandboxes", id, "connect" | "resume"] => {
            lifecycle::connect(server, id, read(body).await?).await
        }
        ["sandboxes", id, "fork"] => fork::fork(server, id, read(body).await?).await,
        ["sandboxes", id, "snapshots"] => snapshots::create(server, id, read(body).await?).await,
        _ => Err(unknown(head, path)),
    }
}

/// Answers a request without one.
async fn look(server: &Arc<Server>, path: &[&str], head: &Parts, client: Client) -> Answer {
    let uri = &head.uri;
    match (head.method.as_str(), path) {
        ("GET", ["sandboxes"]) => return list::list(server, uri).await,
        ("GET", ["sandboxes", "metrics"]) => return metrics::of_many(server, uri, client).await,
        ("GET", ["sandboxes", id, "metrics"]) => return metrics::of_one(server, id, uri).await,
        ("GET", ["snapshots"]) => return snapshots::list(server, uri).await,
        ("GET", ["templates"]) => return templates::list(server, uri).await,
        _ => Query::of(uri, &[])?,
    };
    match (head.method.as_str(), path) {
        ("GET", ["sandboxes", id]) => {
            let (server, served) = (Arc::clone(server), server.found(id).await?);
            waiting(id, move || Ok(view::detail(&server, &served))).await
        }
        ("DELETE", ["sandboxes", id]) => lifecycle::kill(server, id).await,
        ("GET", ["templates", "aliases", name]) => templates::find(server, name).await,
        ("DELETE", ["templates", name]) => snapshots::remove(server, name).await,
        _ => Err(unknown(head, path)),
    }
}

fn unknown(head: &Parts, path: &[&str]) -> Problem {
    Problem::unsupported(format!(
        "this server does not do {} /{}",
        head.method,
        path.join("/")
    ))
}

fn decoded(part: &str) -> Result<String, Problem> {
    let text = percent_decode_str(part).decode_utf8();
    let text = text.map_err(|_| Problem::invalid("the path is not UTF-8"))?;
    Ok(text.into_owned())
}
