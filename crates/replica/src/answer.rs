//! Answers requests.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, IF_RANGE, LINK, RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use micabox_listen::Paced;
use micabox_oci::Digest;
use serde_json::{Value, json};

use crate::access::CHALLENGE;
use crate::blob::{self, Sent};
use crate::catalog::{Catalog, Name, Published};
use crate::list::Page;
use crate::path::Asked;
use crate::problem::{Code, Problem};
use crate::serve::Replica;

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

const VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const BYTES: HeaderValue = HeaderValue::from_static("bytes");
const OCTETS: &str = "application/octet-stream";
const JSON: &str = "application/json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Answers a request of a client at this address. `let_in` is called if it may read.
pub async fn answer(
    replica: &Arc<Replica>,
    request: &Parts,
    address: IpAddr,
    let_in: impl FnOnce(),
) -> Response<Body> {
    let mut reply = match find(replica, request, address, let_in).await {
        Ok(reply) => reply,
        Err(problem) => refusal(&problem),
    };
    let headers = reply.headers_mut();
    headers.insert(VERSION, HeaderValue::from_static("registry/2.0"));
    reply.extensions_mut().insert(Paced);
    reply
}

async fn find(
    replica: &Arc<Replica>,
    request: &Parts,
    address: IpAddr,
    let_in: impl FnOnce(),
) -> Result<Response<Body>, Problem> {
    if !replica.access.admits(&request.headers) {
        let message = "this registry wants one of its tokens, as the password of any user";
        return Err(Problem::new(Code::Unauthorized, message));
    }
    let_in();
    if ![Method::GET, Method::HEAD].contains(&request.method) {
        let mut reply = refusal(&Problem::new(
            Code::Unsupported,
            "this registry is read-only",
        ));
        *reply.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        reply
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(reply);
    }
    let path = request.uri.path();
    let registry = mirrored(request);
    let name = |path| Name {
        registry: registry.as_deref(),
        path,
    };
    match Asked::of(path)? {
        Asked::Registry => Ok(document(JSON, &json!({}))),
        Asked::Referrers => Ok(document(
            INDEX,
            &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}),
        )),
        Asked::Catalog => {
            let names = replica.blocking(Catalog::repositories).await?;
            let (names, next) = Page::of(&request.uri).cut(names, path);
            Ok(linked(
                document(JSON, &json!({"repositories": names})),
                next,
            ))
        }
        Asked::Tags(path_) => {
            let name = Owned::of(&name(path_));
            let tags = replica
                .blocking(move |catalog| catalog.tags(&name.borrow()))
                .await?;
            let (tags, next) = Page::of(&request.uri).cut(tags, path);
            let tags = document(JSON, &json!({"name": path_, "tags": tags}));
            Ok(linked(tags, next))
        }
        Asked::Tag(path, tag) => {
            let published = replica.tagged(&name(path), tag).await?;
            Ok(manifest(published))
        }
        Asked::Manifest(digest) => {
            let published = replica
                .blocking(move |catalog| catalog.manifest(&digest))
                .await?;
            Ok(manifest(published))
        }
        Asked::Blob(digest) => send(replica, request, address, digest).await,
    }
}

/// Returns the registry that a client wants mirrored.
fn mirrored(request: &Parts) -> Option<String> {
    let query = request.uri.query()?;
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let (_, registry) = pairs.find(|(name, _)| name == "ns")?;
    Some(registry.into_owned()).filter(|registry| !registry.is_empty())
}

/// A name for another thread.
pub struct Owned {
    registry: Option<String>,
    path: String,
}

impl Owned {
    pub fn of(name: &Name<'_>) -> Self {
        Self {
            registry: name.registry.map(str::to_owned),
            path: name.path.to_owned(),
        }
    }

    pub fn borrow(&self) -> Name<'_> {
        Name {
            registry: self.registry.as_deref(),
            path: &self.path,
        }
    }
}

fn manifest(published: Published) -> Response<Body> {
    let Published {
        bytes,
        media_type,
        digest,
    } = published;
    let mut reply = whole(&media_type, bytes);
    identify(&mut reply, &digest);
    reply
}

/// Sends a blob: the archive of a layer, or else a config.
async fn send(
    replica: &Arc<Replica>,
    request: &Parts,
    address: IpAddr,
    digest: Digest,
) -> Result<Response<Body>, Problem> {
    let archive = replica
        .blocking(move |catalog| catalog.archive(&digest))
        .await?;
    let Some(archive) = archive else {
        let config = replica
            .blocking(move |catalog| catalog.config(&digest))
            .await?;
        let missing = || Problem::new(Code::BlobUnknown, "the store has no such blob");
        let mut reply = whole(OCTETS, config.ok_or_else(missing)?);
        identify(&mut reply, &digest);
        return Ok(reply);
    };
    let size = archive.size();
    let mut reply = Response::new(empty());
    identify(&mut reply, &digest);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(OCTETS));
    headers.insert(ACCEPT_RANGES, BYTES);
    let range = match wanted(request, &digest) {
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
        let place = replica.transfers.begin(address).ok_or_else(|| {
            let message = "too many layers are being sent";
            Problem::busy(message, std::time::Duration::from_secs(2))
        })?;
        *reply.body_mut() = BodyExt::boxed_unsync(Sent::new(archive, range, place));
    }
    Ok(reply)
}

/// Returns the range that a request asks for, unless it is one of another blob.
fn wanted<'a>(request: &'a Parts, digest: &Digest) -> Option<&'a str> {
    let is_ours = |tag: &HeaderValue| tag.as_bytes() == etag(digest).as_bytes();
    if !request.headers.get(IF_RANGE).is_none_or(is_ours) {
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
