//! Files beside registries, at addresses that this machine's user has set up: signatures of images.

use std::sync::Arc;

use micabox_oci::printable;
use micabox_oci::progress::{Event, Progress};
use reqwest::header::HeaderMap;
use url::Url;

use crate::error::Reason;
use crate::retry::Attempts;
use crate::{Credentials, RegistryError, Settings, Source, settings};

/// A server of files, which is sent no credentials.
pub struct Files {
    source: Source,
    progress: Arc<dyn Progress>,
}

impl Files {
    /// Creates a client for the host of an `https:` or `http:` address. Sends nothing yet.
    ///
    /// # Errors
    ///
    /// [`Reason::Settings`]: it is no such address, or the settings for its host can't be applied.
    pub fn new(
        base: &Url,
        settings: &Arc<Settings>,
        progress: &Arc<dyn Progress>,
    ) -> Result<Self, RegistryError> {
        let text = printable(base.as_str());
        let error = |reason| RegistryError::new("signatures", &text, reason);
        let host = settings::authority(base)
            .filter(|_| matches!(base.scheme(), "https" | "http"))
            .ok_or_else(|| error(Reason::Settings("it is not an http(s) address".to_owned())))?;
        let plain = base.scheme() == "http";
        let credentials = Credentials::none();
        let source = Source::new(settings, &credentials, &host, "lookaside", plain);
        Ok(Self {
            source: source.map_err(error)?,
            progress: Arc::clone(progress),
        })
    }

    /// Fetches the file at `url`, of at most `limit` bytes; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`RegistryError`].
    pub async fn get(&self, url: &Url, limit: u64) -> Result<Option<Vec<u8>>, RegistryError> {
        let mut attempts = Attempts::new(self.source.http.transfer(), false);
        loop {
            let reason = match self.attempt(url, limit).await {
                Ok(file) => return Ok(file),
                Err(reason) => reason,
            };
            let text = format!("{} fails: {reason}; trying again", self.source.host);
            match attempts.failed(reason) {
                Ok(pause) => {
                    self.progress.event(Event::Notice(&text));
                    tokio::time::sleep(pause).await;
                }
                Err(reason) => {
                    let what = format!("the signature {}", printable(url.path()));
                    return Err(RegistryError::new(&what, &self.source.host, reason));
                }
            }
        }
    }

    async fn attempt(&self, url: &Url, limit: u64) -> Result<Option<Vec<u8>>, Reason> {
        let mut answer = self.source.get(url, &HeaderMap::new()).await?;
        match answer.status().as_u16() {
            200 => answer.body(limit).await.map(Some),
            404 => Ok(None),
            _ => Err(answer.refusal(|_| Reason::NoBlob).await),
        }
    }
}
