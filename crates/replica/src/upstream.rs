//! Pulls what clients ask for and the store lacks, from registries that this server's owner named.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use micabox_image::Store;
use micabox_image::progress::Silent;
use micabox_oci::Reference;
use micabox_transfer::{PullOptions, PullPolicy, pull};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::catalog::Name;
use crate::problem::{Code, Problem};

/// Most pulls at a time, and most that are waited for.
const PULLS: usize = 4;
const WAITING: usize = 64;

/// How long a client waits for a pull before it has to ask again. Clients give up after half a minute of silence.
const PATIENCE: Duration = Duration::from_secs(20);
/// When it is to ask again.
const AGAIN: Duration = Duration::from_secs(5);

/// How a pull has ended: the problem for clients, if there is one.
type Ended = Option<Result<(), String>>;

/// Registries from which images are pulled for clients.
pub struct Upstream {
    /// As references name them. The first one has the images whose registry a client doesn't say.
    registries: Vec<String>,
    options: PullOptions,
    pulls: Mutex<HashMap<Reference, watch::Receiver<Ended>>>,
    slots: Semaphore,
    report: Box<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(&self.registries).finish()
    }
}

impl Upstream {
    /// Pulls from these registries with these options, whatever their policy. `report` gets a line when a pull begins
    /// and when it has ended.
    pub fn new(
        registries: Vec<String>,
        options: PullOptions,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self {
            registries,
            options: PullOptions {
                // A tag may have moved. Layers that the store has are not fetched again.
                policy: PullPolicy::Always,
                layers_from_elsewhere: false,
                ..options
            },
            pulls: Mutex::default(),
            slots: Semaphore::new(PULLS),
            report: Box::new(report),
        }
    }

    /// Returns what to pull for a name that a client asks for; `None` if it is of no registry that was named.
    pub(crate) fn reference(&self, name: &Name<'_>, tag: &str) -> Option<Reference> {
        let first = self.registries.first()?;
        let with = |registry: &str| format!("{registry}/{}:{tag}", name.path).parse().ok();
        let reference: Reference = match name.registry {
            Some(registry) => with(registry)?,
            None => {
                let own: Reference = format!("{}:{tag}", name.path).parse().ok()?;
                let rest = name.path.strip_prefix(own.registry());
                match rest.is_some_and(|rest| rest.starts_with('/')) {
                    true => own,
                    false => with(first)?,
                }
            }
        };
        let is_whole = name
            .registry
            .is_none_or(|registry| registry == reference.registry());
        let is_named = self.registries.iter().any(|r| r == reference.registry());
        (is_whole && is_named).then_some(reference)
    }

    /// Brings the image to the store as its registry has it now. Those who ask for the same one share a pull, which
    /// goes on without them.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the pull has failed, or takes too long for this request.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        store: &Store,
        reference: Reference,
    ) -> Result<(), Problem> {
        let busy = |what: String| Problem::busy(what, AGAIN);
        let mut ended = match self.join(store, &reference) {
            Some(ended) => ended,
            None => return Err(busy("too many images are being pulled".to_owned())),
        };
        let ended = match timeout(PATIENCE, ended.wait_for(Option::is_some)).await {
            Ok(Ok(ended)) => ended.clone(),
            Ok(Err(_)) => None,
            Err(_) => return Err(busy(format!("{reference} is being pulled"))),
        };
        match ended {
            Some(Ok(())) => Ok(()),
            Some(Err(message)) => Err(Problem::new(Code::ManifestUnknown, message)),
            None => Err(Problem::new(
                Code::Unknown,
                format!("the pull of {reference} has failed"),
            )),
        }
    }

    /// Returns the end of the pull of an image, which begins now if there is none.
    fn join(
        self: &Arc<Self>,
        store: &Store,
        reference: &Reference,
    ) -> Option<watch::Receiver<Ended>> {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = pulls.get(reference) {
            return Some(ended.clone());
        }
        if pulls.len() >= WAITING {
            return None;
        }
        let (end, ended) = watch::channel(None);
        pulls.insert(reference.clone(), ended.clone());
        drop(pulls);
        let (upstream, store, reference) = (Arc::clone(self), store.clone(), reference.clone());
        tokio::spawn(async move {
            // Also if the pull panics.
            let _under_way = UnderWay(&upstream, &reference);
            // It is never closed.
            let _slot = upstream.slots.acquire().await;
            let result = upstream.pull(&store, &reference).await;
            let _ = end.send(Some(result));
        });
        Some(ended)
    }

    async fn pull(&self, store: &Store, reference: &Reference) -> Result<(), String> {
        (self.report)(&format!("pulling {reference}"));
        match pull(store, reference, &self.options, Arc::new(Silent)).await {
            Ok(image) => {
                (self.report)(&format!("pulled {reference}: {}", image.manifest_digest));
                Ok(())
            }
            Err(error) => {
                let message = error.to_string();
                (self.report)(&message);
                Err(message)
            }
        }
    }
}

/// A pull that others may join until this is dropped.
struct UnderWay<'a>(&'a Upstream, &'a Reference);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut pulls = self.0.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        pulls.remove(self.1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use micabox_transfer::Settings;

    use super::*;

    #[test]
    fn only_registries_that_were_named_are_asked() {
        let registries = ["localhost:5000", "ghcr.io"].map(str::to_owned);
        let options = PullOptions::new(Arc::new(Settings::default()));
        let upstream = Upstream::new(registries.into(), options, |_| {});
        let asked = |registry, path| {
            let reference = upstream.reference(&Name { registry, path }, "1");
            reference.map(|reference| reference.to_string())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(asked(None, "team/box"), some("localhost:5000/team/box:1"));
        assert_eq!(asked(None, "ghcr.io/team/box"), some("ghcr.io/team/box:1"));
        assert_eq!(
            asked(Some("ghcr.io"), "team/box"),
            some("ghcr.io/team/box:1")
        );
        for (registry, path) in [
            (None, "docker.io/library/box"),
            (None, "other.example/box"),
            (Some("docker.io"), "library/box"),
            (Some("127.0.0.1:22"), "box"),
            (Some("ghcr.io/x"), "box"),
            (Some("ghcr.io@x"), "box"),
            (Some("GHCR.IO:443"), "box"),
            (Some(""), "box"),
            (None, "../box"),
            (None, "UPPER"),
        ] {
            assert_eq!(asked(registry, path), None, "{registry:?} {path}");
        }
    }
}
