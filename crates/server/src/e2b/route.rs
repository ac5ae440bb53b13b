//! Routes requests to the API, a sandbox or a port of it, and authenticates their clients.
//!
//! E2B's clients name a sandbox in a header, or a host: `PORT-ID.` and any domain, since a name that
//! leads here says nothing about who made it. An address of a file that was signed names no sandbox; the signature
//! is that of one sandbox's token.

use std::sync::Arc;

use hyper::body::Body;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HOST, HeaderValue,
};
use hyper::{Method, StatusCode};

use super::http::{self, Answer, Request, Response, blocking, header};
use super::places::{Account, OF_API, Places};
use super::problem::{Kind, Problem};
use super::query::Query;
use super::sandbox::{self, is_id};
use super::token::{Signature, Signed, matches};
use super::{code, delivery, envd, ports, rest};
use crate::e2b::server::Server;

/// The port at which E2B's clients look for files and commands.
const ENVD: u16 = 49983;

/// The port at which they look for an interpreter.
const CODE: u16 = 49999;

/// Where clients ask whether the server, or a sandbox, is there.
const HEALTH: &str = "/health";

/// Most bytes of the query of a file's address: a path, each byte of which may be three.
const QUERY: usize = 16 << 10;

/// A port of a sandbox.
#[derive(Debug, PartialEq, Eq)]
struct Port {
    id: String,
    port: u16,
}

/// Answers a request.
pub async fn answer(server: Arc<Server>, request: Request) -> Response {
    let port = port_of(&request);
    let is_envd = match &port {
        Ok(Some(port)) => port.port == ENVD,
        Ok(None) => true,
        Err(_) => false,
    };
    let is_file = is_envd && request.uri().path() == envd::FILES;
    let answered = match port {
        _ if is_file && request.method() == Method::OPTIONS => Ok(preflight()),
        _ if is_file && query_of(&request).len() > QUERY => Err(Problem::new(
            Kind::TooLong,
            format!("the parameters have more than {} KiB", QUERY >> 10),
        )),
        Ok(None) if is_file => signed(server, request).await,
        Ok(None) => api(server, request).await,
        Ok(Some(port)) => at(server, port, request).await,
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
fn port_of(request: &Request) -> Result<Option<Port>, Problem> {
    let headers = request.headers();
    if let Some(id) = headers.get("e2b-sandbox-id") {
        let id = id.to_str().ok().filter(|id| is_id(id));
        let port = match header(headers, "e2b-sandbox-port") {
            Some(port) => port.parse().ok(),
            None => Some(ENVD),
        };
        let found = id.zip(port).map(|(id, port)| Port {
            id: id.to_owned(),
            port,
        });
        return found.map(Some).ok_or_else(Problem::no_sandbox);
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    Ok(host.and_then(of_host))
}

fn of_host(host: &str) -> Option<Port> {
    let (label, _) = host.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    Some(Port {
        port: port.parse().ok()?,
        id: Some(id).filter(|id| is_id(id))?.to_owned(),
    })
}

/// Of the API, for those who have its key.
async fn api(server: Arc<Server>, request: Request) -> Answer {
    if request.uri().path() == HEALTH {
        return healthy(&request);
    }
    if !server.key.is(header(request.headers(), "x-api-key")) {
        return Err(Problem::new(
            Kind::Unauthenticated,
            "the header X-API-Key does not have this server's key",
        ));
    }
    let (head, body) = request.into_parts();
    // Those that only ask have places of their own.
    let whose = match head.method {
        Method::GET => "asks",
        _ => "others",
    };
    let permit = server.bounds.api.take_for(whose, "this server");
    body.call().keep(permit?);
    body.call().charge(Account::new(&server.bounds, OF_API));
    body.call().let_in();
    // A client that disconnects stops no change half-way. What waits for it knows that it is gone.
    let (_here, client) = delivery::watch();
    let answered = tokio::spawn(rest::answer(server, head, body, client)).await;
    answered.unwrap_or_else(|_| Err(Problem::new(Kind::Internal, "a task has failed")))
}

/// At a port of a sandbox.
async fn at(server: Arc<Server>, at: Port, request: Request) -> Answer {
    let Port { id, port } = at;
    let (all, name) = (server.sandboxes.clone(), id.clone());
    let find = move || sandbox::find(&all, &name).map_err(|_| Problem::no_sandbox());
    if port == ENVD && request.uri().path() == HEALTH {
        let answer = healthy(&request)?;
        let found = search(&server.bounds.searches, &id, find).await?;
        // It needs no token, and resumes nothing.
        let is_there = !found.is_paused() && !server.is_ending(&id);
        return is_there.then_some(answer).ok_or_else(Problem::no_sandbox);
    }
    let signed = signature(&request).filter(|_| port == ENVD);
    // A request that is not authorised must not resume it.
    let served = search(&server.bounds.searches, &id, find).await?;
    let label = &served.label;
    let given = |name| header(request.headers(), name);
    let has_token = matches(&label.token, given("x-access-token"));
    let has_traffic = matches(&label.traffic, given("e2b-traffic-access-token"));
    let may = match port {
        ENVD if has_token => Ok(()),
        ENVD => match signed.map(|signed| signed.check(&label.token)) {
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
    server.awake(&served).await?;
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
    let unknown = || {
        let message = "the address is not signed for a sandbox that is here";
        Problem::new(Kind::Unauthenticated, message)
    };
    let signed = signature(&request).ok_or_else(unknown)?;
    let all = server.sandboxes.clone();
    let find = move || {
        for served in sandbox::all(&all)? {
            match signed.check(&served.label.token) {
                Signature::Valid => return Ok(served),
                Signature::Expired => return Err(expired()),
                Signature::Wrong => {}
            }
        }
        Err(unknown())
    };
    let served = search(&server.bounds.wide_searches, "", find).await?;
    let_in(&server, served.id(), &request)?;
    server.awake(&served).await?;
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

/// Searches in a thread, for a client that is not authorized yet: at most so many such threads run, and other searches
/// wait for them.
async fn search<T: Send + 'static>(
    places: &Places,
    of: &str,
    find: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let permit = places.wait(of, 1).await?;
    blocking(move || {
        // Until the thread is free.
        let _permit = permit;
        find()
    })
    .await
}

/// Answers whether this server is there, which needs nothing.
fn healthy(request: &Request) -> Answer {
    if request.method() != Method::GET {
        return Err(Problem::unsupported(format!("{HEALTH} is for GET")));
    }
    Query::of(request.uri(), &[])?;
    if !request.body().is_end_stream() {
        return Err(Problem::invalid("the request has a body"));
    }
    Ok(http::empty(StatusCode::NO_CONTENT))
}

fn query_of(request: &Request) -> &str {
    request.uri().query().unwrap_or_default()
}

/// Returns the signature of a file's address; None if there is none, or nothing that may be one.
fn signature(request: &Request) -> Option<Signed> {
    if request.uri().path() != envd::FILES {
        return None;
    }
    let mut signed = Signed {
        operation: match *request.method() {
            Method::GET => "read",
            Method::POST => "write",
            _ => return None,
        },
        ..Signed::default()
    };
    // Of what is there twice the first; the request is refused then.
    let (mut path, mut user, mut signature) = (None, None, None);
    for (name, value) in form_urlencoded::parse(query_of(request).as_bytes()) {
        let field = match &*name {
            "path" => &mut path,
            "username" => &mut user,
            "signature" => &mut signature,
            "signature_expiration" => &mut signed.expiration,
            _ => continue,
        };
        field.get_or_insert(value.into_owned());
    }
    signed.path = path.unwrap_or_default();
    signed.user = user.unwrap_or_default();
    signed.signature = signature?;
    Some(signed).filter(Signed::is_formed)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn searches_of_unauthorized_clients_take_few_threads() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _guard = runtime.enter();
        let places = Places::new("searches", 2, 2);
        let begin = || {
            let (end, ends) = mpsc::channel::<()>();
            let (begun, begins) = mpsc::channel();
            let find = move || {
                let _ = begun.send(());
                // Until its other end is dropped.
                let _ = ends.recv();
                Ok(())
            };
            (Box::pin(search(&places, "", find)), begins, end)
        };
        let mut all = [begin(), begin(), begin()];
        let mut context = Context::from_waker(Waker::noop());
        for (found, ..) in &mut all {
            assert!(found.as_mut().poll(&mut context).is_pending());
        }
        let [
            (first, first_begins, end),
            (second, second_begins, _second),
            (third, begins, ends),
        ] = all;
        first_begins.recv().unwrap();
        second_begins.recv().unwrap();
        assert!(places.is_full_for(""));
        // Its client goes, and the thread is taken all the same.
        drop(second);
        assert!(places.is_full_for(""));
        assert_eq!(begins.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop((end, ends));
        runtime.block_on(async {
            first.await.unwrap();
            third.await.unwrap();
        });
        begins.recv().unwrap();
    }

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
            let found = of_host(&host);
            assert_eq!(found.as_ref().map(|found| found.port), port, "{host}");
            assert!(found.is_none_or(|found| found.id == id), "{host}");
        }
    }
}
