//! Client for registries: fetches and pushes manifests and blobs by the [distribution
//! specification][spec].
//!
//! An image may be available from several places: peers, which mirror every registry, its registry's
//! mirrors, in the order of the settings, and the registry itself. All get the same requests, and everything they send is
//! verified against its digest.
//!
//! [spec]: https://github.com/opencontainers/distribution-spec/blob/main/spec.md

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod auth;
mod credentials;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod login;
mod lookaside;
mod outgoing;
mod push;
mod ranges;
mod retry;
mod settings;
mod transfer;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::Method;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use tokio::sync::Semaphore;
use url::Url;

pub use credentials::{Credential, CredentialError, Credentials};
pub use error::{Direction, Reason, RegistryError, Unauthorized};
pub use http::PSEUDONYM;
pub use login::{LoginError, LoginFile, check as check_login};
pub use lookaside::Files;
pub use push::{Destination, Mounted};
pub use settings::{Mirror, Registry, Settings, Transfer};
pub use transfer::{BlobReader, BlobSender, channel};

use micabox_oci::progress::{Event, Progress};
use micabox_oci::reference::DEFAULT_REGISTRY;
use micabox_oci::{Descriptor, Digest, MAX_DOCUMENT, Reference, printable};

use auth::{Authenticator, Request};
use http::{Answer, Http};
use retry::Attempts;
use transfer::{Incoming, Interrupted};

/// The media types of manifests that we accept.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// The host that serves the default registry.
const DEFAULT_REGISTRY_HOST: &str = "registry-1.docker.io";

/// A repository, and all places that may have it.
pub struct Repository {
    name: String,
    /// Mirrors first. There is at least one, the registry itself, which comes last.
    sources: Vec<Source>,
    settings: Arc<Settings>,
    progress: Arc<dyn Progress>,
    /// Connections beyond the first of each blob.
    extra: Semaphore,
}

/// A place that may have a repository: a mirror or the registry itself.
pub(crate) struct Source {
    /// `host[:port]`, as references, credentials and settings name it.
    host: String,
    /// URL that ends in the repository's name and a slash.
    base: Url,
    http: Http,
    auth: Authenticator,
    /// The registry that a mirror mirrors, sent as `ns` for mirrors of several registries:
    /// containerd's convention. `None` for the registry itself.
    mirror_of: Option<String>,
    /// Whether it failed in a way that makes further requests a waste of time.
    is_out: AtomicBool,
    /// Whether its answers to ranges are none.
    no_ranges: AtomicBool,
}

impl Source {
    fn new(
        settings: &Arc<Settings>,
        credentials: &Credentials,
        host: &str,
        repository: &str,
        plain: bool,
    ) -> Result<Self, Reason> {
        let address = match host {
            DEFAULT_REGISTRY => DEFAULT_REGISTRY_HOST,
            other => other,
        };
        let scheme = if plain { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{address}/v2/{repository}/"))
            .map_err(|error| Reason::Settings(format!("`{address}` is not an address: {error}")))?;
        Ok(Self {
            host: host.to_owned(),
            base,
            http: Http::new(settings, host, plain)?,
            auth: Authenticator::new(host, repository, credentials.clone()),
            mirror_of: None,
            is_out: AtomicBool::new(false),
            no_ranges: AtomicBool::new(false),
        })
    }

    fn is_mirror(&self) -> bool {
        self.mirror_of.is_some()
    }

    fn has_no_ranges(&self) -> bool {
        self.no_ranges.load(Ordering::Relaxed)
    }

    fn note_no_ranges(&self) {
        self.no_ranges.store(true, Ordering::Relaxed);
    }

    async fn get(&self, url: &Url, headers: &HeaderMap) -> Result<Answer, Reason> {
        let request = Request {
            method: Method::GET,
            url,
            headers: headers.clone(),
            body: None,
            home: &self.base,
        };
        self.auth.send(&self.http, &request).await
    }

    fn url(&self, kind: &str, what: &str) -> Result<Url, Reason> {
        let path = format!("{kind}/{what}");
        // Tags and digests have no character with a meaning in a URL.
        let mut url = self
            .base
            .join(&path)
            .map_err(|error| Reason::Settings(format!("`{path}` is not a path: {error}")))?;
        if let Some(registry) = &self.mirror_of {
            url.query_pairs_mut().append_pair("ns", registry);
        }
        Ok(url)
    }
}

/// A manifest or an index, verified if it was requested by digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The document, at most [`MAX_DOCUMENT`] bytes.
    pub bytes: Vec<u8>,
    /// Digest of the bytes.
    pub digest: Digest,
    /// The registry's `Content-Type`.
    pub media_type: Option<String>,
}

/// A document to request.
enum Ask<'a> {
    Tag(&'a str),
    /// A manifest, with its size if that is known.
    Manifest(&'a Digest, Option<u64>),
    /// A blob small enough for memory, such as a config.
    Blob(&'a Digest, Option<u64>),
    /// The list of what refers to a manifest and is of this type.
    Referrers(&'a Digest, &'a str),
}

impl Repository {
    /// Creates a client. Sends nothing yet; fails only on settings that can't be applied.
    ///
    /// # Errors
    ///
    /// [`Reason::Settings`].
    pub fn new(
        reference: &Reference,
        settings: &Arc<Settings>,
        credentials: &Credentials,
        progress: &Arc<dyn Progress>,
    ) -> Result<Self, RegistryError> {
        let (registry, repository) = (reference.registry(), reference.repository());
        let what = reference.to_string();
        let error = |host: &str, reason| RegistryError::new(&what, host, reason);
        let mut sources = Vec::new();
        // A peer's own images are no other's.
        let own = settings.registry(registry).mirrors;
        let peers = settings
            .peers
            .iter()
            .filter(|peer| peer.registry != registry);
        for mirror in peers.chain(&own) {
            let (host, path) = (&mirror.registry, format!("{}{repository}", mirror.prefix));
            let mut source = Source::new(settings, credentials, host, &path, mirror.plain_http)
                .map_err(|reason| error(host, reason))?;
            source.mirror_of = Some(registry.to_owned());
            sources.push(source);
        }
        let plain = settings.plain_http(registry);
        let origin = Source::new(settings, credentials, registry, repository, plain);
        sources.push(origin.map_err(|reason| error(registry, reason))?);
        Ok(Self {
            name: format!("{registry}/{repository}"),
            sources,
            settings: Arc::clone(settings),
            progress: Arc::clone(progress),
            extra: Semaphore::new(settings.transfer.connections.get() - 1),
        })
    }

    /// Fetches the manifest or index that `reference` names.
    ///
    /// # Errors
    ///
    /// [`RegistryError`]: no source has a valid one.
    pub async fn named(&self, reference: &Reference) -> Result<Fetched, RegistryError> {
        let ask = match (reference.digest(), reference.tag()) {
            (Some(digest), _) => Ask::Manifest(digest, None),
            (None, tag) => Ask::Tag(tag.unwrap_or("latest")),
        };
        self.document(&reference.to_string(), &ask).await
    }

    /// Fetches the manifest or index with this digest, which must be of `size` bytes if its index
    /// has one.
    ///
    /// # Errors
    ///
    /// [`RegistryError`]: no source has a valid one.
    pub async fn manifest(
        &self,
        digest: &Digest,
        size: Option<u64>,
    ) -> Result<Fetched, RegistryError> {
        let what = format!("{}@{digest}", self.name);
        self.document(&what, &Ask::Manifest(digest, size)).await
    }

    /// Fetches the list of what refers to a manifest and is of this type ([listing referrers]): an index, which the
    /// registry makes and nothing vouches for, or the first part of it. None where it makes no such lists.
    ///
    /// [listing referrers]: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-referrers
    ///
    /// # Errors
    ///
    /// [`RegistryError`]: there is an outage.
    pub async fn referrers(
        &self,
        manifest: &Digest,
        artifact_type: &str,
    ) -> Result<Option<Vec<u8>>, RegistryError> {
        let what = format!("what refers to {manifest}");
        match self
            .document(&what, &Ask::Referrers(manifest, artifact_type))
            .await
        {
            Ok(fetched) => Ok(Some(fetched.bytes)),
            Err(error) if error.reason.is_outage() => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Fetches the blob with this digest, which must be of `size` bytes and fit into memory. Errors call it `what`.
    ///
    /// # Errors
    ///
    /// [`RegistryError`]: no source has a valid one.
    pub async fn blob(
        &self,
        what: &str,
        digest: &Digest,
        size: Option<u64>,
    ) -> Result<Vec<u8>, RegistryError> {
        let what = format!("{what} {digest}");
        if size.is_some_and(|size| size > MAX_DOCUMENT) {
            let reason = Reason::TooLarge(MAX_DOCUMENT);
            return Err(RegistryError::new(&what, &self.name, reason));
        }
        let fetched = self.document(&what, &Ask::Blob(digest, size)).await?;
        Ok(fetched.bytes)
    }

    /// Streams a layer's blob, which may also be at `urls`, into `sender`. The length is checked;
    /// the digest isn't, that is up to the reader.
    ///
    /// Returns the source that sent the end of the blob; `None` if that was one of `urls`, or if
    /// the reader was dropped before the end.
    ///
    /// # Errors
    ///
    /// [`RegistryError`]: no source has a valid one.
    pub async fn stream(
        &self,
        diff_id: &Digest,
        blob: &Descriptor,
        urls: &[String],
        mut sender: BlobSender,
    ) -> Result<Option<&str>, RegistryError> {
        let what = format!("layer {}", blob.digest);
        let mut transfer = Incoming {
            diff_id,
            size: blob.size,
            sender: &mut sender,
            progress: &*self.progress,
            extra: &self.extra,
        };
        let mut error = None;
        for (source, is_last) in self.sources() {
            let url = source.url("blobs", &blob.digest.to_string());
            let outcome = match url {
                Ok(url) => transfer.run(source, &url).await,
                Err(reason) => Err(reason.into()),
            };
            match outcome {
                Ok(()) => {
                    transfer.finish().await;
                    return Ok(Some(&source.host));
                }
                Err(Interrupted::HungUp) => return Ok(None),
                Err(Interrupted::Failed(reason)) => {
                    let is_elsewhere = reason == Reason::NoBlob && !urls.is_empty();
                    match self.failed(source, &what, reason, is_last) {
                        Ok(()) => {}
                        Err(failed) if is_elsewhere => error = Some(failed),
                        Err(failed) => return Err(failed),
                    }
                }
            }
        }
        // A layer that its registry isn't allowed to hold.
        for url in urls {
            match self.stream_foreign(url, &mut transfer).await {
                Ok(()) => {
                    transfer.finish().await;
                    return Ok(None);
                }
                Err(Interrupted::HungUp) => return Ok(None),
                Err(Interrupted::Failed(reason)) => {
                    let stop = !reason.allows_fallback();
                    let failed = RegistryError::new(&what, &printable(url), reason);
                    if stop {
                        return Err(failed);
                    }
                    error = Some(failed);
                }
            }
        }
        Err(error.unwrap_or_else(|| RegistryError::new(&what, &self.name, Reason::NoBlob)))
    }

    /// Fetches bytes of a layer's blob, all of `range`, which has to be within the blob and to fit into memory. No digest
    /// is checked: that is up to the caller, who is told the host that has sent them.
    ///
    /// # Errors
    ///
    /// [`RegistryError`]: no source has them; [`Reason::NoRanges`] from those that send other bytes, or all of the blob.
    pub async fn part(
        &self,
        diff_id: &Digest,
        blob: &Descriptor,
        range: Range<u64>,
    ) -> Result<(Vec<u8>, &str), RegistryError> {
        let mut all = Vec::new();
        let take = |bytes: &[u8], _: &str| {
            all.extend_from_slice(bytes);
            true
        };
        let from = self.pieces(diff_id, blob, range, take).await?;
        Ok((all, from))
    }

    /// Fetches the same, and gives it to `take` piece by piece as it comes, in its order, with the host that has sent it.
    /// Once that returns false, no more is fetched. Returns the host that has sent the last bytes.
    ///
    /// # Errors
    ///
    /// As for [`Repository::part`]. What was given to `take` stays good.
    pub async fn pieces(
        &self,
        diff_id: &Digest,
        blob: &Descriptor,
        mut range: Range<u64>,
        mut take: impl FnMut(&[u8], &str) -> bool + Send,
    ) -> Result<&str, RegistryError> {
        let what = format!("a part of layer {}", blob.digest);
        let retrying =
            |reason: &str, pause| transfer::retrying(&*self.progress, diff_id, reason, pause);
        for (source, is_last) in self.sources() {
            let mut attempts = Attempts::new(source.http.transfer(), source.is_mirror());
            let mut take = |bytes: &[u8]| take(bytes, &source.host);
            let reason = loop {
                let part = match source.url("blobs", &blob.digest.to_string()) {
                    Ok(url) => {
                        let range = &mut range;
                        ranges::part(source, &url, range, blob.size, &retrying, &mut take).await
                    }
                    Err(reason) => Err(reason),
                };
                let reason = match part {
                    Ok(()) => return Ok(&source.host),
                    Err(reason) => reason,
                };
                let text = reason.to_string();
                match attempts.failed(reason) {
                    Ok(pause) => {
                        retrying(&text, pause);
                        tokio::time::sleep(pause).await;
                    }
                    Err(reason) => break reason,
                }
            };
            self.failed(source, &what, reason, is_last)?;
        }
        Err(RegistryError::new(&what, &self.name, Reason::NoBlob))
    }

    /// Streams a layer from a URL in its manifest: over TLS, and without credentials.
    async fn stream_foreign(
        &self,
        url: &str,
        transfer: &mut Incoming<'_>,
    ) -> Result<(), Interrupted> {
        let url = Url::parse(url)
            .ok()
            .filter(|url| url.scheme() == "https")
            .ok_or_else(|| Reason::Redirect("not an https address".to_owned()))?;
        let host = settings::authority(&url)
            .ok_or_else(|| Reason::Redirect("it has no host".to_owned()))?;
        let source = Source::new(
            &self.settings,
            &Credentials::none(),
            &host,
            "foreign",
            false,
        )?;
        transfer.run(&source, &url).await
    }

    async fn document(&self, what: &str, ask: &Ask<'_>) -> Result<Fetched, RegistryError> {
        for (source, is_last) in self.sources() {
            let mut attempts = Attempts::new(source.http.transfer(), source.is_mirror());
            let reason = loop {
                let reason = match document_from(source, ask).await {
                    Ok(fetched) => return Ok(fetched),
                    Err(reason) => reason,
                };
                let text = format!("{} fails: {reason}; trying again", source.host);
                match attempts.failed(reason) {
                    Ok(pause) => {
                        self.progress.event(Event::Notice(&text));
                        tokio::time::sleep(pause).await;
                    }
                    Err(reason) => break reason,
                }
            };
            self.failed(source, what, reason, is_last)?;
        }
        // Unreachable: there is a last source, and its failure is an error.
        let reason = Reason::Settings("neither a registry nor a mirror to ask".to_owned());
        Err(RegistryError::new(what, &self.name, reason))
    }

    /// Returns the sources worth asking, each with whether it is the last.
    fn sources(&self) -> impl Iterator<Item = (&Source, bool)> {
        let last = self.sources.len() - 1;
        self.sources
            .iter()
            .enumerate()
            .map(move |(index, source)| (source, index == last))
            .filter(|(source, is_last)| *is_last || !source.is_out.load(Ordering::Relaxed))
    }

    /// Records a source's failure: an error, unless the next source may be asked.
    fn failed(
        &self,
        source: &Source,
        what: &str,
        reason: Reason,
        is_last: bool,
    ) -> Result<(), RegistryError> {
        let (is_outage, allows_fallback) = (reason.is_outage(), reason.allows_fallback());
        let error = RegistryError::new(what, &source.host, reason);
        if is_last || !allows_fallback {
            return Err(error);
        }
        // One notice is enough: all layers of an image find the same outage.
        if !is_outage || !source.is_out.swap(true, Ordering::Relaxed) {
            let text = format!("passing over mirror {}: {error}", source.host);
            self.progress.event(Event::Notice(&text));
        }
        Ok(())
    }
}

async fn document_from(source: &Source, ask: &Ask<'_>) -> Result<Fetched, Reason> {
    let (url, expected, missing): (_, _, fn(String) -> Reason) = match ask {
        Ask::Tag(tag) => (source.url("manifests", tag)?, None, Reason::NoImage),
        Ask::Manifest(digest, size) => {
            let url = source.url("manifests", &digest.to_string())?;
            (url, Some((**digest, *size)), Reason::NoImage)
        }
        Ask::Blob(digest, size) => {
            let url = source.url("blobs", &digest.to_string())?;
            (url, Some((**digest, *size)), |_| Reason::NoBlob)
        }
        Ask::Referrers(digest, artifact_type) => {
            let mut url = source.url("referrers", &digest.to_string())?;
            url.query_pairs_mut()
                .append_pair("artifactType", artifact_type);
            (url, None, Reason::NoImage)
        }
    };
    let mut headers = HeaderMap::new();
    if !matches!(ask, Ask::Blob(..)) {
        headers.insert(ACCEPT, HeaderValue::from_static(MANIFESTS));
    }
    let mut answer = source.get(&url, &headers).await?;
    if answer.status().as_u16() != 200 {
        return Err(answer.refusal(missing).await);
    }
    let header = |name| answer.header(name).map(str::to_owned);
    let (media_type, claimed) = (header("content-type"), header("docker-content-digest"));
    let bytes = answer.body(MAX_DOCUMENT).await?;
    let digest = Digest::of(&bytes);
    // Without a requested digest, the registry must at least agree with itself.
    let claimed = claimed.and_then(|claimed| claimed.parse().ok());
    let (expected, size) = match expected {
        Some((expected, size)) => (Some(expected), size),
        None => (claimed, None),
    };
    if http::is_markup(&bytes) && expected != Some(digest) {
        return Err(Reason::WebPage);
    }
    if let Some(expected) = expected.filter(|expected| *expected != digest) {
        return Err(Reason::Digest {
            expected,
            actual: digest,
        });
    }
    let actual = bytes.len() as u64;
    if let Some(declared) = size.filter(|declared| *declared != actual) {
        return Err(Reason::Size { declared, actual });
    }
    Ok(Fetched {
        bytes,
        digest,
        media_type,
    })
}
