//! What E2B's clients expect at the port of an interpreter: code in Python, in contexts that keep their state.

mod context;
mod interpreter;
mod language;
mod replies;
mod reply;

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::http::{self, Answer, Nothing, Request, read};
use super::incoming::Incoming;
use super::map;
use super::problem::Problem;
use super::query::Query;
use super::sandbox::Served;
use crate::e2b::server::Server;

pub use context::Contexts;
pub use replies::{Coming, REPLY, Replies};

/// The body of a request to run code.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    #[serde(default, deserialize_with = "map::unique")]
    env_vars: BTreeMap<String, String>,
}

/// The body of a request for a context.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    language: Option<String>,
    cwd: Option<String>,
}

/// Answers a request whose client may.
pub async fn answer(server: Arc<Server>, served: Served, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let path = head.uri.path().trim_matches('/').to_owned();
    let path: Vec<&str> = path.split('/').collect();
    Query::of(&head.uri, &[])?;
    let contexts = &server.contexts;
    match (&head.method, path.as_slice()) {
        (&Method::GET, ["health"]) => {
            let Nothing {} = read(body).await?;
            Ok(http::json(StatusCode::OK, &"OK"))
        }
        (&Method::POST, ["execute"]) => execute(&server, &served, body).await,
        (&Method::GET, ["contexts"]) => {
            let Nothing {} = read(body).await?;
            // The one for code without a context is there from the beginning.
            contexts
                .common(&server.bounds, &server.sandboxes, &served)
                .await?;
            let all = contexts.of(served.id());
            let shown: Vec<_> = all.iter().map(|context| context.view()).collect();
            Ok(http::json(StatusCode::OK, &shown))
        }
        (&Method::POST, ["contexts"]) => {
            let new: New = read(body).await?;
            let context = contexts
                .make(
                    &server.bounds,
                    &server.sandboxes,
                    &served,
                    new.language,
                    new.cwd,
                )
                .await?;
            Ok(http::json(StatusCode::OK, &context.view()))
        }
        (&Method::DELETE, ["contexts", id]) => {
            let Nothing {} = read(body).await?;
            contexts.remove(served.id(), id).await?;
            Ok(http::empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, ["contexts", id, "restart"]) => {
            let Nothing {} = read(body).await?;
            contexts.find(served.id(), id)?.restart().await;
            Ok(http::json(StatusCode::OK, &json!({})))
        }
        _ => Err(Problem::not_found("there is no such address")),
    }
}

async fn execute(server: &Arc<Server>, served: &Served, body: Incoming) -> Answer {
    let execute: Execute = read(body).await?;
    let context = match &execute.context_id {
        Some(_) if execute.language.is_some() => {
            let message =
                "a context has a language: only one of context_id and language can be given";
            return Err(Problem::invalid(message));
        }
        Some(id) => server.contexts.find(served.id(), id)?,
        None => {
            language::checked(execute.language)?;
            server
                .contexts
                .common(&server.bounds, &server.sandboxes, served)
                .await?
        }
    };
    let (pieces, body) = http::later();
    let variables = execute.env_vars;
    let served = served.clone();
    // A client that leaves interrupts its code; the interpreter is to be told that.
    tokio::spawn(async move {
        context
            .run(&served, &execute.code, variables, &pieces)
            .await;
    });
    let mut reply = hyper::Response::new(body);
    http::set_type(&mut reply, "application/x-ndjson");
    Ok(reply)
}
