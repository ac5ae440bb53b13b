//! HTTP client for one registry: trust, timeouts, and redirects that don't leak secrets.

use std::error::Error;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue, LOCATION, VIA};
use reqwest::{Client, Method, StatusCode, redirect};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use url::Url;

use crate::error::Reason;
use crate::outgoing::Outgoing;
use crate::retry;
use crate::settings::authority;
use crate::{Settings, Transfer};
use micabox_oci::reference::is_loopback;
use micabox_oci::{json, printable};

/// What `mica store serve` calls itself in the requests that it sends for its clients (`Via`).
pub const PSEUDONYM: &str = "mica";
const USER_AGENT: &str = concat!("micabox/", env!("CARGO_PKG_VERSION"));
const MAX_REDIRECTS: usize = 8;
/// Bytes of an error's body that are searched for a message.
const MAX_COMPLAINT: u64 = 16 << 10;

/// HTTP client for one registry, its token server, and the hosts that it redirects to.
pub(crate) struct Http {
    /// With this client's certificate, if there is one: only the registry itself gets to know it.
    own: Option<Clients>,
    others: Clients,
    transfer: Transfer,
    settings: Arc<Settings>,
    /// The registry's name, as in references.
    registry: String,
    /// Its host and port in an HTTP URL, where the default port is left out.
    authority: Option<String>,
    /// The same in an HTTPS URL.
    address: Option<String>,
    /// Whether plain HTTP is allowed for the registry itself.
    plain: bool,
}

/// Clients that trust the same authorities.
struct Clients {
    /// Uses `HTTP_PROXY` and its relatives.
    outside: Client,
    /// Doesn't use them: no proxy can reach our loopback interface.
    loopback: Client,
}

impl Clients {
    fn new(tls: ClientConfig, settings: &Settings) -> Result<Self, Reason> {
        let client = || {
            Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .user_agent(USER_AGENT)
                .redirect(redirect::Policy::none())
                .connect_timeout(settings.transfer.connect_timeout)
        };
        let build = |builder: reqwest::ClientBuilder| {
            builder
                .build()
                .map_err(|error| Reason::Settings(root_cause(&error)))
        };
        Ok(Self {
            outside: build(client())?,
            loopback: build(client().no_proxy())?,
        })
    }
}

impl Http {
    /// Creates the client. `plain`: whether plain HTTP is allowed for `registry` itself.
    pub(crate) fn new(
        settings: &Arc<Settings>,
        registry: &str,
        plain: bool,
    ) -> Result<Self, Reason> {
        let table = settings.registry(registry);
        let clients = |knows: Option<(&Path, &Path)>| {
            Clients::new(trust(&table.ca, knows).map_err(Reason::Settings)?, settings)
        };
        let certificate = table.client_certificate.as_deref();
        let own = match certificate.zip(table.client_key.as_deref()) {
            Some(pair) => Some(clients(Some(pair))?),
            None => None,
        };
        Ok(Self {
            own,
            others: clients(None)?,
            address: Url::parse(&format!("https://{registry}"))
                .ok()
                .and_then(|url| authority(&url)),
            transfer: settings.transfer.clone(),
            settings: Arc::clone(settings),
            registry: registry.to_owned(),
            authority: Url::parse(&format!("http://{registry}"))
                .ok()
                .and_then(|url| authority(&url)),
            plain,
        })
    }

    /// Returns timeouts and retries.
    pub(crate) fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Sends a request for `url`, with a body or without one, and follows redirects: the same
    /// request again, elsewhere. `authorization` is sent to the origin of `url` and to no other.
    pub(crate) async fn send(
        &self,
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
        authorization: Option<&HeaderValue>,
        body: Option<&Outgoing>,
    ) -> Result<Answer, Reason> {
        let mut at = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.request(method.clone(), &at)?.headers(headers.clone());
            if let Some(body) = body {
                // An empty body's length is said, too: proxies answer 411 otherwise.
                request = request
                    .header(CONTENT_LENGTH, body.size())
                    .body(body.body());
            }
            if let Some(secret) = authorization.filter(|_| at.origin() == url.origin()) {
                request = request.header(AUTHORIZATION, secret);
            }
            let mut answer = self.answer_to(request, body).await?;
            if at.origin() != url.origin() {
                answer.elsewhere = authority(&at);
            }
            if !is_redirect(&answer) {
                return Ok(answer);
            }
            let location = answer.headers().get(LOCATION).map(HeaderValue::to_str);
            let Some(Ok(location)) = location else {
                return Err(Reason::Redirect("it doesn't say where to".to_owned()));
            };
            let to = printable(location);
            if body.is_some() && answer.status() == StatusCode::SEE_OTHER {
                // What is there is an answer to some other request.
                return Err(Reason::Redirect(format!("to `{to}`, without the body")));
            }
            at = at
                .join(location)
                .map_err(|_| Reason::Redirect(format!("to `{to}`")))?;
        }
        Err(Reason::Redirect(format!(
            "more than {MAX_REDIRECTS} in a row"
        )))
    }

    /// Posts a form to `url`. Redirects are not followed: a form may hold a secret.
    pub(crate) async fn post(&self, url: &Url, form: String) -> Result<Answer, Reason> {
        let request = self
            .request(Method::POST, url)?
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(form);
        self.answer_to(request, None).await
    }

    fn request(&self, method: Method, url: &Url) -> Result<reqwest::RequestBuilder, Reason> {
        let host = authority(url).unwrap_or_default();
        match url.scheme() {
            "https" => {}
            "http" if self.allows_plain(&host) => {}
            "http" => {
                return Err(Reason::Redirect(format!(
                    "plain HTTP to {host} isn't allowed; if it should be, set `plain-http = true` \
                     under [registry.\"{host}\"] in the settings"
                )));
            }
            other => {
                return Err(Reason::Redirect(format!(
                    "to a {} address",
                    printable(other)
                )));
            }
        }
        let is_own = url.scheme() == "https" && self.address.as_deref() == Some(&*host);
        let clients = match &self.own {
            Some(own) if is_own => own,
            _ => &self.others,
        };
        let client = if is_loopback(&host) {
            &clients.loopback
        } else {
            &clients.outside
        };
        let mut request = client.request(method, url.clone());
        if self.settings.transfer.sends_via {
            request = request.header(VIA, format!("1.1 {PSEUDONYM}"));
        }
        Ok(request)
    }

    /// Returns whether plain HTTP to `host` is allowed: by the settings, or because both the
    /// registry and `host` are loopback addresses. A registry elsewhere must not redirect to our
    /// loopback interface.
    fn allows_plain(&self, host: &str) -> bool {
        if self.authority.as_deref() == Some(host) {
            return self.plain;
        }
        self.settings
            .registry(host)
            .plain_http
            .unwrap_or_else(|| is_loopback(host) && is_loopback(&self.registry))
    }

    /// Sends one request and returns the response to it.
    async fn answer_to(
        &self,
        request: reqwest::RequestBuilder,
        body: Option<&Outgoing>,
    ) -> Result<Answer, Reason> {
        let idle_timeout = self.transfer.idle_timeout;
        let stalled = async {
            match body {
                Some(body) => body.stalled(idle_timeout).await,
                // The connection has its own timeout; the response's head is one wait like any other.
                None => sleep(self.transfer.connect_timeout + idle_timeout).await,
            }
        };
        let sent = tokio::select! {
            sent = request.send() => sent,
            () = stalled => return Err(Reason::Stalled(idle_timeout)),
        };
        Ok(Answer {
            elsewhere: None,
            response: sent.map_err(|error| self.describe(&error))?,
            idle_timeout,
        })
    }

    fn describe(&self, error: &reqwest::Error) -> Reason {
        let registry = &self.registry;
        match find_cause::<rustls::Error>(error) {
            Some(rustls::Error::InvalidCertificate(problem)) => Reason::Tls(format!(
                "its certificate isn't trusted ({problem:?}); a private certificate authority \
                 belongs under [registry.\"{registry}\"] as `ca` in the settings{}",
                if system_roots().is_empty() {
                    "; this system has no certificate authorities at all: install ca-certificates"
                } else {
                    ""
                }
            )),
            Some(rustls::Error::InvalidMessage(_)) => Reason::Tls(format!(
                "it doesn't speak TLS; if it may be plain HTTP, set `plain-http = true` under \
                 [registry.\"{registry}\"] in the settings"
            )),
            Some(other) => Reason::Tls(other.to_string()),
            None if error.is_connect() => Reason::Connect {
                host: error.url().and_then(authority).unwrap_or_default(),
                problem: root_cause(error),
            },
            None => Reason::Broken(root_cause(error)),
        }
    }
}

/// A response whose head has arrived.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The host that sent it, if a redirect led to another one.
    elsewhere: Option<String>,
    response: reqwest::Response,
    idle_timeout: Duration,
}

impl Answer {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Returns the address that the response is from, after redirects.
    pub(crate) fn url(&self) -> &Url {
        self.response.url()
    }

    /// Returns the host that sent the response, if a redirect led to another one.
    pub(crate) fn elsewhere(&self) -> Option<&str> {
        self.elsewhere.as_deref()
    }

    /// Notes that the response is from `url`, at another host.
    pub(crate) fn came_from(&mut self, url: &Url) {
        self.elsewhere = self.elsewhere.take().or_else(|| authority(url));
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Returns a header's value, if the header is present and text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    /// Returns `Content-Length`, in bytes.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    /// Returns the next bytes of the body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Reason> {
        match timeout(self.idle_timeout, self.response.chunk()).await {
            Err(_) => Err(Reason::Stalled(self.idle_timeout)),
            Ok(Err(error)) => Err(Reason::Broken(root_cause(&error))),
            Ok(Ok(chunk)) => Ok(chunk),
        }
    }

    /// Returns the whole body, without the encoding of a server that chose one by itself; an error
    /// if it is longer than `limit` bytes.
    pub(crate) async fn body(&mut self, limit: u64) -> Result<Vec<u8>, Reason> {
        if self.content_length().is_some_and(|length| length > limit) {
            return Err(Reason::TooLarge(limit));
        }
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() as u64 + chunk.len() as u64 > limit {
                return Err(Reason::TooLarge(limit));
            }
            body.extend_from_slice(&chunk);
        }
        let encoding = self.header("content-encoding").unwrap_or_default();
        // Some say so of what isn't encoded.
        let encoding = encoding.trim().to_ascii_lowercase();
        if !matches!(encoding.as_str(), "gzip" | "x-gzip") || !body.starts_with(&[0x1f, 0x8b]) {
            return Ok(body);
        }
        let mut plain = Vec::new();
        MultiGzDecoder::new(&body[..])
            .take(limit + 1)
            .read_to_end(&mut plain)
            .map_err(|error| Reason::Broken(format!("its gzip encoding: {error}")))?;
        if plain.len() as u64 > limit {
            return Err(Reason::TooLarge(limit));
        }
        Ok(plain)
    }

    /// Returns whether this is a web page in place of an answer: a success whose body is HTML. The
    /// type alone does not tell, since some registries give it to answers without a body.
    pub(crate) async fn is_page(&mut self) -> Result<bool, Reason> {
        if self.status() != StatusCode::OK || !self.is_html() {
            return Ok(false);
        }
        let start = self.chunk().await?;
        Ok(start.is_some_and(|start| is_markup(&start)))
    }

    /// Returns whether the body is HTML, according to the head.
    pub(crate) fn is_html(&self) -> bool {
        let kind = self.header("content-type").unwrap_or_default();
        kind.trim().to_ascii_lowercase().starts_with("text/html")
    }

    /// Turns a response with an unexpected status into an error. `missing` makes the error of a
    /// 404.
    pub(crate) async fn refusal(mut self, missing: fn(String) -> Reason) -> Reason {
        let retry_after = retry::retry_after(self.headers());
        let status = self.status();
        let message = self.complaint().await;
        match status.as_u16() {
            403 => Reason::Forbidden(message),
            404 => missing(message),
            413 => Reason::TooMuch(message),
            429 => Reason::RateLimited {
                pause: retry_after,
                message,
            },
            408 | 425 | 500..=599 => Reason::Server {
                status: status.as_u16(),
                message,
                retry_after,
            },
            status => Reason::Unexpected { status, message },
        }
    }

    /// Returns the message in an error's body, in the distribution specification's format.
    async fn complaint(&mut self) -> String {
        #[derive(Default, Deserialize)]
        struct Complaint {
            errors: Vec<Problem>,
            details: String,
        }
        #[derive(Deserialize)]
        struct Problem {
            code: String,
            message: String,
        }
        let body = self.body(MAX_COMPLAINT).await.unwrap_or_default();
        let complaint: Complaint = json::from_slice(&body).unwrap_or_default();
        let first = complaint.errors.into_iter().next();
        let first = first.map(|problem| [problem.message, problem.code]);
        let mut texts = first.into_iter().flatten().chain([complaint.details]);
        let text = texts.find(|text| !text.is_empty());
        text.as_deref().map(printable).unwrap_or_default()
    }
}

/// Returns whether bytes are the beginning of HTML or XML.
pub(crate) fn is_markup(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"<")
}

fn is_redirect(answer: &Answer) -> bool {
    matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Creates a TLS configuration that trusts the system's certificate authorities and those in `files`, with a client's
/// certificate and its key.
fn trust(files: &[PathBuf], client: Option<(&Path, &Path)>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system_roots().iter().cloned());
    for file in files {
        let wrong = |problem: String| {
            format!(
                "the certificate authorities in {}: {problem}",
                file.display()
            )
        };
        let mut count = 0;
        let certificates =
            CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| wrong(error.to_string()))?;
            count += 1;
        }
        if count == 0 {
            return Err(wrong("it contains no PEM certificate".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some((certificate, key)) = client else {
        return Ok(config.with_no_client_auth());
    };
    let wrong = |file: &Path, problem: &dyn fmt::Display| {
        format!(
            "the client's certificate and key: {}: {problem}",
            file.display()
        )
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(certificate, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    config
        .with_client_auth_cert(chain, secret)
        .map_err(|error| wrong(certificate, &error))
}

/// Returns the system's certificate authorities, read once. Unreadable ones are skipped: a missing
/// one shows when a certificate isn't trusted.
fn system_roots() -> &'static [CertificateDer<'static>] {
    static ROOTS: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    ROOTS.get_or_init(|| rustls_native_certs::load_native_certs().certs)
}

/// Returns the message of the innermost error, the most specific one.
fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    printable(&cause.to_string())
}

/// Returns the first error of type `T` in the chain of `error`'s sources.
fn find_cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An `io::Error` hides the error that it wraps from `source`.
        let wrapped = error.downcast_ref().and_then(io::Error::get_ref);
        next = wrapped.map_or_else(|| error.source(), |wrapped| Some(wrapped));
    }
    None
}
