//! Routes requests to the API, a sandbox or a port of it, and authenticates their clients.
//!
//! E2B's clients name a sandbox in a header, or a host: `PORT-ID.` and any domain, since a name that
//! leads here says nothing about who made it. An address of a file that was signed names no sandbox; the signature
//! is that of one sandbox's token.

use std::sync::Arc;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HOST, HeaderValue,
};
use hyper::{Method, StatusCode};

use super::Server;
use super::http::{self, Answer, Request, Response, blocking, header, query};
use super::places::Account;
use super::problem::{Kind, Problem};
use super::sandbox::{self, is_id};
use super::token::{Signature, Signed, matches};
use super::{code, delivery, envd, ports, rest};

/// The port at which E2B's clients look for files and commands.
const ENVD: u16 = 49983;

/// The port at which they look for an interpreter.
const CODE: u16 = 49999;

/// The account of the API's clients, which is no sandbox's.
pub const API: &str = "";

/// A port of a sandbox.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    id: String,
    port: u16,
}

/// Answers a request.
pub async fn answer(server: Arc<Server>, request: Request) -> Response {
    let place = place(&request);
    let is_envd = match &place {
        Ok(Some(place)) => place.port == ENVD,
        Ok(None) => true,
        Err(_) => false,
    };
    let is_file = is_envd && request.uri().path() == envd::FILES;
    let answered = match place {
        _ if is_file && request.method() == Method::OPTIONS => Ok(preflight()),
        Ok(None) if is_file => signed(server, request).await,
        Ok(None) => api(server, request).await,
        Ok(Some(place)) => at(server, place, request).await,
        Err(problem) => Err(problem),
    };
    let mut reply = answered.unwrap_or_else(|problem| problem.reply());
    if is_file {
        // A client has the file's signed address, or the sandbox's token, whatever page it is part of.
        let any = HeaderValue::from_static("*");
        reply.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, any);
    }
    reply
}

/// Answers a browser that asks whether a page of another origin may send a file or get one.
fn preflight() -> Response {
    let mut reply = http::empty(StatusCode::NO_CONTENT);
    for (name, value) in [
        (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "*"),
        (ACCESS_CONTROL_MAX_AGE, "7200"),
    ] {
        reply
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    reply
}

/// The sandbox and port that a request is for; None for the API.
fn place(request: &Request) -> Result<Option<Place>, Problem> {
    let headers = request.headers();
    if let Some(id) = headers.get("e2b-sandbox-id") {
        let id = id.to_str().ok().filter(|id| is_id(id));
        let port = match header(headers, "e2b-sandbox-port") {
            Some(port) => port.parse().ok(),
            None => Some(ENVD),
        };
        let place = id.zip(port).map(|(id, port)| Place {
            id: id.to_owned(),
            port,
        });
        return place.map(Some).ok_or_else(Problem::no_sandbox);
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    Ok(host.and_then(of_host))
}

fn of_host(host: &str) -> Option<Place> {
    let (label, _) = host.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    Some(Place {
        port: port.parse().ok()?,
        id: Some(id).filter(|id| is_id(id))?.to_owned(),
    })
}

/// Of the API, for those who have its key.
async fn api(server: Arc<Server>, request: Request) -> Answer {
    if request.uri().path() == "/health" && request.method() == Method::GET {
        return Ok(http::empty(StatusCode::NO_CONTENT));
    }
    if !server.key.is(header(request.headers(), "x-api-key")) {
        return Err(Problem::new(
            Kind::Unauthenticated,
            "the header X-API-Key does not have this server's key",
        ));
    }
    let (head, body) = request.into_parts();
    body.call().charge(Account::new(&server.bounds, API));
    body.call().let_in();
    // A client that disconnects stops no change half-way. What waits for it knows that it is gone.
    let (_here, client) = delivery::watch();
    let answered = tokio::spawn(rest::answer(server, head, body, client)).await;
    answered.unwrap_or_else(|_| Err(Problem::new(Kind::Internal, "a task has failed")))
}

/// At a port of a sandbox.
async fn at(server: Arc<Server>, place: Place, request: Request) -> Answer {
    let Place { id, port } = place;
    if port == ENVD && request.uri().path() == "/health" {
        server.awake(&id).await?;
        return Ok(http::empty(StatusCode::NO_CONTENT));
    }
    // A request that is not authorised must not resume it.
    let all = server.sandboxes.clone();
    let name = id.clone();
    let found = blocking(move || sandbox::find(&all, &name).map_err(|_| Problem::no_sandbox()));
    let label = found.await?.label;
    let given = |name| header(request.headers(), name);
    let has_token = matches(&label.token, given("x-access-token"));
    let has_traffic = matches(&label.traffic, given("e2b-traffic-access-token"));
    let may = match port {
        ENVD if has_token => Ok(()),
        ENVD => match signature(request.method(), request.uri(), &label.token) {
            Some(Signature::Valid) => Ok(()),
            Some(Signature::Expired) => Err(expired()),
            _ => Err(no_token()),
        },
        CODE if has_token || has_traffic => Ok(()),
        CODE => Err(no_token()),
        _ if label.is_public || has_traffic => Ok(()),
        port => return Ok(ports::forbidden(&id, port)),
    };
    may?;
    let_in(&server, &id, &request)?;
    let served = server.awake(&id).await?;
    match port {
        ENVD => envd::answer(server, served, request).await,
        CODE => code::answer(server, served, request).await,
        port => ports::answer(server, served, port, request).await,
    }
}

/// Notes that a request may be made, which takes one of the sandbox's places until its reply is sent.
fn let_in(server: &Server, id: &str, request: &Request) -> Result<(), Problem> {
    let call = request.body().call();
    call.keep(server.bounds.requests.take(id)?);
    call.charge(Account::new(&server.bounds, id));
    call.let_in();
    Ok(())
}

/// A file's address that names no sandbox.
async fn signed(server: Arc<Server>, request: Request) -> Answer {
    let all = server.sandboxes.clone();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let served = blocking(move || {
        for served in sandbox::all(&all)? {
            match signature(&method, &uri, &served.label.token) {
                Some(Signature::Valid) => return Ok(served),
                Some(Signature::Expired) => return Err(expired()),
                _ => {}
            }
        }
        let message = "the address is not signed for a sandbox that is here";
        Err(Problem::new(Kind::Unauthenticated, message))
    })
    .await?;
    let_in(&server, served.id(), &request)?;
    let served = server.awake(served.id()).await?;
    envd::answer(server, served, request).await
}

fn no_token() -> Problem {
    let message = "the sandbox's token is missing or wrong";
    Problem::new(Kind::Unauthenticated, message)
}

/// In words by which E2B's clients know that.
fn expired() -> Problem {
    Problem::new(Kind::Unauthenticated, "signature is already expired")
}

/// Returns what the signature of a file's address is worth with this token; None if there is none.
fn signature(method: &Method, uri: &hyper::Uri, token: &str) -> Option<Signature> {
    if uri.path() != envd::FILES {
        return None;
    }
    let operation = match *method {
        Method::GET => "read",
        Method::POST => "write",
        _ => return None,
    };
    let signature = query(uri, "signature")?;
    let expiration = query(uri, "signature_expiration");
    let signed = Signed {
        path: &query(uri, "path").unwrap_or_default(),
        operation,
        user: &query(uri, "username").unwrap_or_default(),
        expiration: expiration.as_deref(),
        signature: &signature,
    };
    Some(signed.check(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_names_a_port_of_a_sandbox() {
        let id = "0123456789abcdef0123456789abcdef";
        for (host, port) in [
            (format!("8080-{id}.localhost:3000"), Some(8080)),
            (format!("1-{id}.e2b.app"), Some(1)),
            (format!("65536-{id}.e2b.app"), None),
            (format!("-1-{id}.e2b.app"), None),
            (format!("8080-{id}"), None),
            (format!("8080-{}.e2b.app", id.to_uppercase()), None),
            (format!("8080-{id}0.e2b.app"), None),
            ("8080-../../etc.e2b.app".to_owned(), None),
            ("localhost:3000".to_owned(), None),
            ("127.0.0.1:3000".to_owned(), None),
        ] {
            let place = of_host(&host);
            assert_eq!(place.as_ref().map(|place| place.port), port, "{host}");
            assert!(place.is_none_or(|place| place.id == id), "{host}");
        }
    }
}
