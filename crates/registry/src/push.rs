//! Pushes blobs and manifests to a registry: the pushing half of the distribution specification.
//!
//! A blob is sent as Docker sends it, which every registry supports: one PATCH with all of it, and
//! a PUT with its digest. After a failure the registry is asked how many bytes it has, and the
//! transfer continues from there if the registry can say so. Where a proxy refuses bodies of that
//! size, the blob is sent in smaller pieces.

use std::fs::File;
use std::sync::Arc;

use reqwest::Method;
use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue};
use url::Url;

use crate::Source;
use crate::auth::Request;
use crate::error::{Direction, Reason, RegistryError};
use crate::http::Answer;
use crate::outgoing::{Outgoing, Watch};
use crate::retry::Attempts;
use crate::{Credentials, Settings};
use micabox_oci::progress::{Event, LayerState, Progress};
use micabox_oci::{Descriptor, Digest, Reference};

/// Size of the pieces of a blob that can't be sent as a whole, in bytes. Registries that assemble
/// blobs from pieces require at least 5 MiB.
const PIECE: u64 = 16 << 20;
/// Bytes of progress that reset the count of failures, as in a pull.
const PROGRESS: u64 = 1 << 20;

/// The media type of parts of blobs.
const BYTES: &str = "application/octet-stream";

/// A repository to push to.
pub struct Destination {
    source: Source,
    progress: Arc<dyn Progress>,
}

/// Result of mounting a blob from another repository.
pub enum Mounted {
    /// The repository has the blob.
    Yes,
    /// The blob must be sent, to this upload address if there is one.
    No(Option<Url>),
}

/// A blob to send.
struct Outbound<'a> {
    file: &'a Arc<File>,
    blob: &'a Descriptor,
    /// The diff ID that identifies it in progress events, if it is a layer's.
    diff_id: Option<&'a Digest>,
}

/// State of a blob's upload.
struct Session {
    /// Address for the next bytes.
    url: Option<Url>,
    /// How many bytes the registry has.
    at: u64,
    /// Largest body of one request, in bytes.
    most: Option<u64>,
}

impl Destination {
    /// Creates a client. Sends nothing yet. Blobs may be mounted from `others`, repositories of
    /// the same registry.
    ///
    /// # Errors
    ///
    /// [`Reason::Settings`].
    pub fn new<'a>(
        reference: &Reference,
        others: impl IntoIterator<Item = &'a str>,
        settings: &Arc<Settings>,
        credentials: &Credentials,
        progress: &Arc<dyn Progress>,
    ) -> Result<Self, RegistryError> {
        let (registry, repository) = (reference.registry(), reference.repository());
        let plain = settings.plain_http(registry);
        let error = |reason| RegistryError {
            direction: Direction::Push,
            what: reference.to_string(),
            host: registry.to_owned(),
            reason: Box::new(reason),
        };
        let mut source =
            Source::new(settings, credentials, registry, repository, plain).map_err(error)?;
        source.auth = source.auth.for_push(others);
        Ok(Self {
            source,
            progress: Arc::clone(progress),
        })
    }

    /// Returns whether the repository already has the blob.
    ///
    /// # Errors
    ///
    /// [`RegistryError`], once retrying is of no use.
    pub async fn has(&self, blob: &Descriptor) -> Result<bool, RegistryError> {
        let what = format!("blob {}", blob.digest);
        let mut attempts = self.attempts();
        loop {
            match self.ask_for(blob).await {
                Ok(answer) => return Ok(answer),
                Err(reason) => self.wait(&mut attempts, &what, reason).await?,
            }
        }
    }

    async fn ask_for(&self, blob: &Descriptor) -> Result<bool, Reason> {
        let url = self.source.url("blobs", &blob.digest.to_string())?;
        let answer = self
            .send(Method::HEAD, &url, HeaderMap::new(), None)
            .await?;
        match answer.status().as_u16() {
            200 => Ok(answer
                .content_length()
                .is_none_or(|length| length == blob.size)),
            // Without an answer to the question, it is sent.
            404 | 405 | 501 => Ok(false),
            _ => Err(answer.refusal(Reason::NoRepository).await),
        }
    }

    /// Mounts a blob from another repository of the registry. This only saves a transfer, so no
    /// failure is an error.
    pub async fn mount(&self, digest: &Digest, from: &str) -> Mounted {
        let Ok(mut url) = self.source.url("blobs", "uploads/") else {
            return Mounted::No(None);
        };
        url.query_pairs_mut()
            .append_pair("mount", &digest.to_string())
            .append_pair("from", from);
        let empty = Outgoing::bytes("");
        let answer = self
            .send(Method::POST, &url, HeaderMap::new(), Some(&empty))
            .await;
        match answer {
            Ok(answer) if answer.status().as_u16() == 201 => Mounted::Yes,
            Ok(answer) if answer.status().as_u16() == 202 => {
                Mounted::No(self.location(&answer).ok())
            }
            _ => Mounted::No(None),
        }
    }

    /// Sends the blob in `file`, to `url` if a mount returned one. `diff_id` is the diff ID of the
    /// blob's layer, if it is a layer's.
    ///
    /// # Errors
    ///
    /// [`RegistryError`]; the registry doesn't have the blob.
    pub async fn upload(
        &self,
        blob: &Descriptor,
        file: &Arc<File>,
        diff_id: Option<&Digest>,
        url: Option<Url>,
    ) -> Result<(), RegistryError> {
        let blob = &Outbound {
            file,
            blob,
            diff_id,
        };
        let mut attempts = self.attempts();
        let mut session = Session {
            url,
            at: 0,
            most: None,
        };
        loop {
            let before = session.at;
            let reason = match self.attempt(blob, &mut session).await {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            };
            if matches!(reason, Reason::TooMuch(_))
                && session.most.is_none()
                && blob.blob.size > PIECE
            {
                session = Session {
                    url: None,
                    at: 0,
                    most: Some(PIECE),
                };
                continue;
            }
            if session.at.saturating_sub(before) >= PROGRESS {
                attempts.progressed();
            }
            let text = reason.to_string();
            let pause = attempts
                .failed(reason)
                .map_err(|reason| self.error(&format!("blob {}", blob.blob.digest), reason))?;
            match blob.diff_id {
                Some(diff_id) => {
                    let state = LayerState::Retrying {
                        reason: &text,
                        pause,
                    };
                    self.progress.event(Event::Layer { diff_id, state });
                }
                None => {
                    let text = format!("{} fails: {text}; trying again", self.source.host);
                    self.progress.event(Event::Notice(&text));
                }
            }
            tokio::time::sleep(pause).await;
            self.resume(blob, &mut session).await;
        }
    }

    /// Puts a manifest under a tag. All blobs that the manifest names must be in the repository.
    ///
    /// # Errors
    ///
    /// [`RegistryError`], once retrying is of no use.
    pub async fn put_manifest(
        &self,
        tag: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), RegistryError> {
        let what = format!("the manifest as `{tag}`");
        let mut attempts = self.attempts();
        loop {
            match self.offer(tag, media_type, bytes).await {
                Ok(()) => return Ok(()),
                Err(reason) => self.wait(&mut attempts, &what, reason).await?,
            }
        }
    }

    async fn offer(&self, tag: &str, media_type: &str, bytes: &[u8]) -> Result<(), Reason> {
        let url = self.source.url("manifests", tag)?;
        let body = Outgoing::bytes(bytes.to_vec());
        let mut headers = HeaderMap::new();
        let media_type = HeaderValue::try_from(media_type)
            .map_err(|_| Reason::Settings(format!("`{media_type}` is not a media type")))?;
        headers.insert(CONTENT_TYPE, media_type);
        let answer = self.send(Method::PUT, &url, headers, Some(&body)).await?;
        if !matches!(answer.status().as_u16(), 200..=204) {
            return Err(answer.refusal(Reason::NoRepository).await);
        }
        let expected = Digest::of(bytes);
        let stored = answer.header("docker-content-digest");
        match stored.and_then(|digest| digest.parse().ok()) {
            Some(actual) if actual != expected => Err(Reason::Digest { expected, actual }),
            _ => Ok(()),
        }
    }

    /// Sends the missing part of a blob.
    async fn attempt(&self, blob: &Outbound<'_>, session: &mut Session) -> Result<(), Reason> {
        let mut url = match session.url.take() {
            Some(url) => url,
            None => self.start().await?,
        };
        while session.at < blob.blob.size {
            let (start, left) = (session.at, blob.blob.size - session.at);
            let length = session.most.map_or(left, |most| most.min(left));
            // Kept so that `resume` can ask how many bytes arrived.
            session.url = Some(url.clone());
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(BYTES));
            if length < blob.blob.size {
                let range = format!("{start}-{}", start + length - 1);
                headers.extend(
                    HeaderValue::try_from(range)
                        .ok()
                        .map(|r| (CONTENT_RANGE, r)),
                );
            }
            let part = Outgoing::part(blob.file, start, length, self.watch(blob, start));
            let answer = self.send(Method::PATCH, &url, headers, Some(&part)).await?;
            if matches!(answer.status().as_u16(), 405 | 501) && length == blob.blob.size {
                // It takes a blob only as a whole, with its digest.
                let whole = Outgoing::part(blob.file, 0, length, self.watch(blob, 0));
                return self.end(blob, session, &url, &whole).await;
            }
            if !matches!(answer.status().as_u16(), 200..=204) {
                return Err(answer.refusal(forgotten).await);
            }
            url = self.location(&answer)?;
            session.at = match received(&answer) {
                Some(at) if at > start && at <= blob.blob.size => at,
                Some(at) if at != start + length => {
                    return Err(Reason::Broken(format!(
                        "it says that it has {at} of {} bytes",
                        start + length
                    )));
                }
                _ => start + length,
            };
        }
        self.end(blob, session, &url, &Outgoing::end()).await
    }

    /// Ends an upload: sends `rest`, which may be all or nothing, and the blob's digest.
    async fn end(
        &self,
        blob: &Outbound<'_>,
        session: &mut Session,
        url: &Url,
        rest: &Outgoing,
    ) -> Result<(), Reason> {
        // After any failure here, the next attempt starts afresh.
        (session.url, session.at) = (None, 0);
        let mut end = url.clone();
        end.query_pairs_mut()
            .append_pair("digest", &blob.blob.digest.to_string());
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(BYTES));
        let answer = self.send(Method::PUT, &end, headers, Some(rest)).await?;
        match answer.status().as_u16() {
            200..=204 => Ok(()),
            _ => Err(answer.refusal(forgotten).await),
        }
    }

    /// Requests an upload address for a blob.
    async fn start(&self) -> Result<Url, Reason> {
        let url = self.source.url("blobs", "uploads/")?;
        let empty = Outgoing::bytes("");
        let answer = self
            .send(Method::POST, &url, HeaderMap::new(), Some(&empty))
            .await?;
        match answer.status().as_u16() {
            200..=202 => self.location(&answer),
            _ => Err(answer.refusal(Reason::NoRepository).await),
        }
    }

    /// Asks how much of a blob arrived before a failure. If that isn't certain, the upload starts
    /// again.
    async fn resume(&self, blob: &Outbound<'_>, session: &mut Session) {
        session.at = 0;
        let Some(url) = session.url.take() else {
            return;
        };
        let asked = self.send(Method::GET, &url, HeaderMap::new(), None).await;
        if let Ok(answer) = asked
            && answer.status().as_u16() == 204
            && let Some(at) = received(&answer)
            && (2..blob.blob.size).contains(&at)
            && let Ok(url) = self.location(&answer)
        {
            session.url = Some(url);
            session.at = at;
        }
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Option<&Outgoing>,
    ) -> Result<Answer, Reason> {
        let request = Request {
            method,
            url,
            headers,
            body,
            home: &self.source.base,
        };
        let mut answer = self.source.auth.send(&self.source.http, &request).await?;
        // Nothing was pushed to who answers so, whatever the status says.
        if request.method != Method::HEAD && answer.is_page().await? {
            return Err(Reason::WebPage);
        }
        Ok(answer)
    }

    /// Returns the address at which a response asks to continue.
    fn location(&self, answer: &Answer) -> Result<Url, Reason> {
        answer
            .header("location")
            .and_then(|location| answer.url().join(location).ok())
            .ok_or_else(|| Reason::Redirect("it doesn't say where to".to_owned()))
    }

    fn watch(&self, blob: &Outbound<'_>, start: u64) -> Watch {
        let Some(diff_id) = blob.diff_id.copied() else {
            return Arc::new(|_| {});
        };
        let (progress, of) = (Arc::clone(&self.progress), blob.blob.size);
        Arc::new(move |sent| {
            let bytes = start + sent;
            let state = LayerState::Sent { bytes, of };
            progress.event(Event::Layer {
                diff_id: &diff_id,
                state,
            });
        })
    }

    fn attempts(&self) -> Attempts<'_> {
        Attempts::new(self.source.http.transfer(), false)
    }

    /// Waits until the next attempt; an error if there should be none.
    async fn wait(
        &self,
        attempts: &mut Attempts<'_>,
        what: &str,
        reason: Reason,
    ) -> Result<(), RegistryError> {
        let text = format!("{} fails: {reason}; trying again", self.source.host);
        let pause = attempts
            .failed(reason)
            .map_err(|reason| self.error(what, reason))?;
        self.progress.event(Event::Notice(&text));
        tokio::time::sleep(pause).await;
        Ok(())
    }

    fn error(&self, what: &str, reason: Reason) -> RegistryError {
        RegistryError {
            direction: Direction::Push,
            what: what.to_owned(),
            host: self.source.host.clone(),
            reason: Box::new(reason),
        }
    }
}

/// A 404 in the middle of a transfer, which may be started again.
fn forgotten(message: String) -> Reason {
    let mut problem = "it forgot the transfer".to_owned();
    if !message.is_empty() {
        problem = format!("{problem}: {message}");
    }
    Reason::Broken(problem)
}

/// Returns how many bytes of a blob the registry reports to have: `0-99` are 100.
fn received(answer: &Answer) -> Option<u64> {
    let range = answer.header("range")?;
    let range = range.strip_prefix("bytes=").unwrap_or(range);
    let (first, last) = range.split_once('-')?;
    let last: u64 = last.trim().parse().ok()?;
    (first.trim() == "0").then(|| last.saturating_add(1))
}
