//! Answers requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HOST, HeaderName,
    HeaderValue, IF_NONE_MATCH, IF_RANGE, LINK, ORIGIN, RANGE, RETRY_AFTER, VIA, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode};
use micabox_listen::Paced;
use micabox_oci::Digest;
use micabox_transfer::PSEUDONYM;
use serde_json::{Value, json};

use crate::access::CHALLENGE;
use crate::blob::{self, Sent};
use crate::catalog::Published;
use crate::list::Page;
use crate::name::Name;
use crate::path::Asked;
use crate::problem::{Code, Problem};
use crate::serve::{Client, Replica};

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

const VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const BYTES: HeaderValue = HeaderValue::from_static("bytes");
const OCTETS: &str = "application/octet-stream";
const JSON: &str = "application/json";

/// Answers a request. `let_in` is called if its client may read.
pub async fn answer(
    replica: &Arc<Replica>,
    request: &Parts,
    client: Client,
    let_in: impl FnOnce(),
) -> Response<Body> {
    let found = find(replica, request, client, let_in).await;
    let mut reply = found.unwrap_or_else(|problem| {
        if let Some(why) = &problem.why {
            (replica.report)(why);
        }
        refusal(&problem)
    });
    let headers = reply.headers_mut();
    headers.insert(VERSION, HeaderValue::from_static("registry/2.0"));
    reply.extensions_mut().insert(Paced);
    reply
}

async fn find(
    replica: &Arc<Replica>,
    request: &Parts,
    client: Client,
    let_in: impl FnOnce(),
) -> Result<Response<Body>, Problem> {
    if !replica.access.admits(&request.headers) {
        let message = "this registry wants one of its tokens, as the password of any user";
        return Err(Problem::new(Code::Unauthorized, message));
    }
    if replica.is_open() {
        refuse_pages(request, client)?;
    }
    let_in();
    if ![Method::GET, Method::HEAD].contains(&request.method) {
        let mut reply = refusal(&Problem::new(
            Code::Unsupported,
            "this registry is read-only",
        ));
        *reply.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        let allowed = HeaderValue::from_static("GET, HEAD");
        reply.headers_mut().insert(ALLOW, allowed);
        return Ok(reply);
    }
    let path = request.uri.path();
    let default = replica.default_registry();
    let reference = |path: &str, tag| {
        let name = Name {
            registry: mirrored(request),
            path: path.to_owned(),
        };
        name.reference(tag, default)
    };
    match Asked::of(path)? {
        Asked::Registry => Ok(document(JSON, &json!({}))),
        Asked::Catalog => {
            let default = default.to_owned();
            let names = replica
                .blocking(move |catalog| catalog.repositories(&default))
                .await?;
            let (names, next) = Page::of(&request.uri).cut(names, path);
            Ok(linked(
                document(JSON, &json!({"repositories": names})),
                next,
            ))
        }
        Asked::Tags(name) => {
            let of = reference(name, "latest")?;
            let tags = replica.blocking(move |catalog| catalog.tags(&of)).await?;
            let (tags, next) = Page::of(&request.uri).cut(tags, path);
            let tags = document(JSON, &json!({"name": name, "tags": tags}));
            Ok(linked(tags, next))
        }
        Asked::Tag(name, tag) => {
            let reference = reference(name, tag)?;
            let published = replica.named(reference, is_through_a_replica(request), client.address);
            Ok(manifest(request, published.await?))
        }
        Asked::Manifest(name, digest) => {
            // What is here is found whatever the repository is called.
            let name = reference(name, "latest").map(|name| name.with_digest(digest));
            let through = is_through_a_replica(request);
            let published = replica.by_digest(digest, name, through, client.address);
            Ok(manifest(request, published.await?))
        }
        Asked::Blob(digest) => send(replica, request, client, digest).await,
    }
}

/// Returns the registry that a client wants mirrored.
fn mirrored(request: &Parts) -> Option<String> {
    let query = request.uri.query()?;
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let (_, registry) = pairs.find(|(name, _)| name == "ns")?;
    Some(registry.into_owned())
}

/// Returns whether a request is on behalf of another server like this one. Proxies add themselves to the same line.
fn is_through_a_replica(request: &Parts) -> bool {
    let via = request.headers.get_all(VIA).iter();
    let mut hops = via
        .filter_map(|via| via.to_str().ok())
        .flat_map(|via| via.split(','));
    hops.any(|hop| hop.split_whitespace().nth(1) == Some(PSEUDONYM))
}

/// Refuses the requests of pages in a browser: a page could have everything pulled, and with a name of its own that
/// leads to this machine read it. Clients of registries send none of these headers.
fn refuse_pages(request: &Parts, client: Client) -> Result<(), Problem> {
    let headers = &request.headers;
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if headers.contains_key(ORIGIN) || site.is_some_and(|site| site != b"none") {
        let message = "without tokens, pages in a browser are not answered";
        return Err(Problem::new(Code::Denied, message));
    }
    if client.is_local && !is_of_this_machine(headers) {
        let message = "without tokens, this address is asked by its number or as localhost";
        return Err(Problem::new(Code::Denied, message));
    }
    Ok(())
}

/// Returns whether the host that is asked is an address, or the name that is this machine's on every machine.
fn is_of_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host else {
        return true;
    };
    let is_address = host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_local = name.eq_ignore_ascii_case("localhost");
    is_address || is_local || host.starts_with('[')
}

/// Answers a client that has this document or blob already.
fn unchanged(request: &Parts, digest: &Digest) -> Option<Response<Body>> {
    let has = request.headers.get(IF_NONE_MATCH)?.to_str().ok()?;
    let tag = etag(digest);
    let mut tags = has.split(',').map(str::trim);
    if !tags.any(|one| one == "*" || one.trim_start_matches("W/") == tag) {
        return None;
    }
    let mut reply = Response::new(empty());
    *reply.status_mut() = StatusCode::NOT_MODIFIED;
    identify(&mut reply, digest);
    Some(reply)
}

fn manifest(request: &Parts, published: Published) -> Response<Body> {
    if let Some(reply) = unchanged(request, &published.digest) {
        return reply;
    }
    let Published {
        bytes,
        media_type,
        digest,
    } = published;
    let mut reply = whole(&media_type, bytes);
    identify(&mut reply, &digest);
    reply
}

/// Sends a blob: a layer, or else a config or what is attached to an image.
async fn send(
    replica: &Arc<Replica>,
    request: &Parts,
    client: Client,
    digest: Digest,
) -> Result<Response<Body>, Problem> {
    let source = match replica.attachments.blob(&digest) {
        Some(_) => None,
        None => {
            let found = replica.blocking(move |catalog| catalog.blob(&digest));
            found.await?
        }
    };
    let Some(source) = source else {
        // Small enough to be read for nothing.
        let config = match replica.attachments.blob(&digest) {
            Some(blob) => Some(blob),
            None => {
                let found = replica.blocking(move |catalog| catalog.config(&digest));
                found.await?
            }
        };
        let missing = || Problem::new(Code::BlobUnknown, "the store has no such blob");
        let mut reply = whole(OCTETS, config.ok_or_else(missing)?);
        identify(&mut reply, &digest);
        return Ok(unchanged(request, &digest).unwrap_or(reply));
    };
    if let Some(reply) = unchanged(request, &digest) {
        return Ok(reply);
    }
    let size = source.size();
    let mut reply = Response::new(empty());
    identify(&mut reply, &digest);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(OCTETS));
    headers.insert(ACCEPT_RANGES, BYTES);
    // Only GET has ranges.
    let wanted = wanted(request, &digest).filter(|_| request.method == Method::GET);
    let range = match wanted {
        Some(range) => blob::range(range, size),
        None => Ok(None),
    };
    let part = match range {
        Ok(part) => part,
        Err(()) => {
            let mut reply = refusal(&Problem::new(
                Code::Range,
                "the blob ends before that range",
            ));
            let size = HeaderValue::try_from(format!("bytes */{size}"));
            reply
                .headers_mut()
                .extend(size.ok().map(|size| (CONTENT_RANGE, size)));
            return Ok(reply);
        }
    };
    if let Some(part) = &part {
        let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
        let text = HeaderValue::try_from(text).ok();
        headers.extend(text.map(|text| (CONTENT_RANGE, text)));
    }
    let range = part.clone().unwrap_or(0..size);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    if part.is_some() {
        *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    if request.method == Method::GET {
        let place = replica.transfers.begin(client.address).ok_or_else(|| {
            let message = "too many layers are being sent";
            Problem::busy(message, std::time::Duration::from_secs(2))
        })?;
        *reply.body_mut() =
            BodyExt::boxed_unsync(Sent::new(source, range, Arc::clone(&replica.report), place));
    }
    Ok(reply)
}

/// Returns the range that a request asks for, unless it is one of another blob.
fn wanted<'a>(request: &'a Parts, digest: &Digest) -> Option<&'a str> {
    let is_same = |tag: &HeaderValue| tag.as_bytes() == etag(digest).as_bytes();
    if !request.headers.get(IF_RANGE).is_none_or(is_same) {
        return None;
    }
    request.headers.get(RANGE)?.to_str().ok()
}

fn etag(digest: &Digest) -> String {
    format!("\"{digest}\"")
}

fn identify(reply: &mut Response<Body>, digest: &Digest) {
    let texts = [(DIGEST, digest.to_string()), (ETAG, etag(digest))];
    for (name, text) in texts {
        let value = HeaderValue::try_from(text).ok();
        reply.headers_mut().extend(value.map(|value| (name, value)));
    }
}

fn document(kind: &str, body: &Value) -> Response<Body> {
    whole(kind, body.to_string().into())
}

fn whole(kind: &str, bytes: Bytes) -> Response<Body> {
    let length = HeaderValue::from(bytes.len());
    let body = Full::new(bytes).map_err(|never| match never {});
    let mut reply = Response::new(BodyExt::boxed_unsync(body));
    let headers = reply.headers_mut();
    let kind = HeaderValue::try_from(kind).ok();
    headers.extend(kind.map(|kind| (CONTENT_TYPE, kind)));
    headers.insert(CONTENT_LENGTH, length);
    reply
}

fn empty() -> Body {
    BodyExt::boxed_unsync(http_body_util::Empty::new().map_err(|never| match never {}))
}

fn linked(mut reply: Response<Body>, next: Option<String>) -> Response<Body> {
    let next = next.and_then(|next| HeaderValue::try_from(next).ok());
    reply.headers_mut().extend(next.map(|next| (LINK, next)));
    reply
}

fn refusal(problem: &Problem) -> Response<Body> {
    let mut reply = whole(JSON, problem.document().into());
    *reply.status_mut() = problem.code.status();
    let headers = reply.headers_mut();
    if problem.code == Code::Unauthorized {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
    }
    if let Some(after) = problem.after {
        headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs()));
    }
    reply
}
