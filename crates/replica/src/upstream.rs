//! Pulls what clients ask for and the store lacks, from registries that this server's owner named.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use micabox_ground::lock;
use micabox_image::Store;
use micabox_image::progress::Silent;
use micabox_oci::{Digest, Reference};
use micabox_transfer::{
    Attached, PullError, PullOptions, PullPolicy, RegistryError, Settings, fetch_attached, pull,
};
use micabox_trust::{Scope, Signatures, Subject};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::Report;
use crate::problem::{Code, Problem};

/// Most pulls of a registry at a time, and most that are under way or wait for their turn.
const PULLS: usize = 4;
const WAITING: usize = 64;
/// Most of them that one client has asked for first.
const OF_ONE: usize = 16;

/// Attempts at one request: clients ask again, and others wait for their turn.
const ATTEMPTS: u32 = 2;

/// How long a client waits for a pull before it has to ask again. Clients give up after half a minute of silence.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long it waits if the store has an image of that name: time enough to find out that a tag has not moved.
const PATIENCE_WITH_IMAGE: Duration = Duration::from_secs(5);
/// When it is to ask again.
pub const AGAIN: Duration = Duration::from_secs(5);

/// How long the result of a pull answers for another one: clients ask for a manifest's head first.
const FRESH: Duration = Duration::from_secs(5);
/// How long a registry that can't be reached is not asked again.
const REST: Duration = Duration::from_secs(30);
/// How long a pull waits for its turn without a client that asks for it.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// How a pull has ended, and when.
type Ended = Option<(Instant, Result<(), Failed>)>;

/// Why a pull failed, for clients.
#[derive(Debug, Clone)]
struct Failed {
    code: Code,
    message: String,
    /// Whether the registry can't be reached at all.
    is_out: bool,
}

/// Which way an image comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// From its registry's mirrors, or else from the registry.
    Mirrors,
    /// From the registry alone: for servers like this one, which may be those mirrors, and wait for this one.
    Direct,
}

/// Pulls an image, and returns its manifest's digest. Tests have pulls that never end.
type Puller = Box<dyn Fn(Store, Reference, Way) -> Pulled + Send + Sync>;
type Pulled = Pin<Box<dyn Future<Output = Result<Digest, PullError>> + Send>>;

/// Fetches what is attached to an image, by its name.
type Fetcher = Box<dyn Fn(Reference) -> Fetching + Send + Sync>;
type Fetching = Pin<Box<dyn Future<Output = Result<Attached, RegistryError>> + Send>>;

/// Registries from which images are pulled for clients.
pub struct Upstream {
    /// Not empty. The first one has the images whose registry a client doesn't say.
    registries: Vec<Registry>,
    pull: Puller,
    fetch: Fetcher,
    pulls: Mutex<HashMap<Key, Pull>>,
    settings: Arc<Settings>,
    report: Report,
}

/// Which pull it is.
type Key = (Reference, Way);

/// A registry.
struct Registry {
    /// As references name it.
    name: String,
    by_mirrors: Source,
    direct: Source,
}

/// Where images of a registry come from one way, with its share of what is done at a time: what comes directly does not
/// wait for what waits for other servers.
struct Source {
    slots: Semaphore,
    /// Since when it can't be reached.
    is_out: Mutex<Option<Instant>>,
}

/// A pull that is under way, or has ended.
struct Pull {
    ended: watch::Receiver<Ended>,
    /// When a client asked for it last.
    asked: Instant,
    /// Who asked for it first.
    client: IpAddr,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.registries.iter().map(|one| &one.name).collect();
        f.debug_tuple("Upstream").field(&names).finish()
    }
}

impl Upstream {
    /// Pulls from these registries with these options, whatever their policy. If the settings have blobs kept, images have
    /// the digests of their registries here. `report` gets a line when a pull begins and when it has ended. `None` without any registry.
    pub fn new(registries: Vec<String>, options: PullOptions, report: Report) -> Option<Self> {
        let mut settings = Settings::clone(&options.settings);
        settings.transfer.attempts = settings.transfer.attempts.min(ATTEMPTS);
        settings.transfer.sends_via = true;
        let settings = Arc::new(settings);
        let options = PullOptions {
            // A tag may have moved. Layers that the store has are not fetched again.
            policy: PullPolicy::Always,
            layers_from_elsewhere: false,
            lazy: false,
            // Who asks for a digest has it from an index with images of all platforms.
            any_platform: true,
            settings: Arc::clone(&settings),
            ..options
        };
        let direct = Arc::new(PullOptions {
            settings: Arc::new(without_mirrors(&settings)),
            ..options.clone()
        });
        let options = Arc::new(options);
        let of_attached = Arc::clone(&options);
        let fetch = move |name: Reference| -> Fetching {
            let options = Arc::clone(&of_attached);
            Box::pin(async move { fetch_attached(&name, &options).await })
        };
        let pull = move |store, reference, way| -> Pulled {
            let options = Arc::clone(match way {
                Way::Mirrors => &options,
                Way::Direct => &direct,
            });
            Box::pin(async move {
                let image = pull(&store, &reference, &options, Arc::new(Silent)).await?;
                Ok(image.manifest_digest)
            })
        };
        (!registries.is_empty()).then(|| Self {
            settings,
            ..Self::with(registries, Box::new(pull), Box::new(fetch), report)
        })
    }

    fn with(registries: Vec<String>, pull: Puller, fetch: Fetcher, report: Report) -> Self {
        let registry = |name| Registry {
            name,
            by_mirrors: Source::default(),
            direct: Source::default(),
        };
        Self {
            registries: registries.into_iter().map(registry).collect(),
            pull,
            fetch,
            pulls: Mutex::default(),
            settings: Arc::default(),
            report,
        }
    }

    /// Returns whether what is pulled is kept as it came, so that its registry's digests are known here.
    pub(crate) fn keeps_blobs(&self) -> bool {
        self.settings.keep_blobs
    }

    /// Returns whether the policy asks something of what has this name, or can't be read: then nothing may pass without
    /// it.
    pub(crate) fn is_judged(&self, name: &Reference) -> bool {
        let subject = Subject {
            reference: Some(name),
            manifests: &[],
        };
        match self.settings.policy() {
            Ok(None) => false,
            Ok(Some(policy)) => {
                let decided = policy.check(Scope::Registry(name), subject, &Signatures::default());
                decided.is_err()
            }
            Err(_) => true,
        }
    }

    /// Returns the registry of names that say none.
    pub(crate) fn first(&self) -> &str {
        self.registries.first().map_or("", |first| &first.name)
    }

    /// Returns whether an image is of a registry that was named.
    pub(crate) fn pulls_from(&self, reference: &Reference) -> bool {
        self.registry(reference).is_some()
    }

    fn registry(&self, reference: &Reference) -> Option<&Registry> {
        let mut registries = self.registries.iter();
        registries.find(|registry| registry.name == reference.registry())
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
        reference: &Reference,
        way: Way,
        client: IpAddr,
        is_here: bool,
    ) -> Result<(), Problem> {
        let Some(mut ended) = self.join(store, (reference.clone(), way), client) else {
            return Err(Problem::busy("too many images are being pulled", AGAIN));
        };
        let patience = if is_here {
            PATIENCE_WITH_IMAGE
        } else {
            PATIENCE
        };
        let ended = match timeout(patience, ended.wait_for(Option::is_some)).await {
            Ok(Ok(ended)) => ended.clone(),
            Ok(Err(_)) => None,
            Err(_) => return Err(Problem::busy(format!("{reference} is being pulled"), AGAIN)),
        };
        match ended {
            Some((_, Ok(()))) => Ok(()),
            Some((_, Err(Failed { code, message, .. }))) => Err(Problem::new(code, message)),
            None => Err(Problem::busy(format!("{reference} was not pulled"), AGAIN)),
        }
    }

    /// Forgets the result of a pull: what it brought is not there any more.
    pub(crate) fn forget(&self, reference: &Reference, way: Way) {
        let mut pulls = self.pulls();
        let key = (reference.clone(), way);
        if pulls.get(&key).is_some_and(|pull| !pull.waits()) {
            pulls.remove(&key);
        }
    }

    /// Returns what its registry has attached to an image under this name; `None` if it is no registry to pull from.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the registry can't be asked.
    pub(crate) async fn attached(
        &self,
        name: &Reference,
    ) -> Option<Result<Option<Attached>, Problem>> {
        let registry = self.registry(name)?;
        let out = || {
            let message = format!("{} can't be reached", registry.name);
            Some(Err(Problem::new(Code::Gateway, message)))
        };
        let source = &registry.by_mirrors;
        if source.rests() {
            return out();
        }
        let fetched = timeout(PATIENCE, async {
            // It is never closed.
            let _slot = source.slots.acquire().await;
            (self.fetch)(name.clone()).await
        });
        let Ok(fetched) = fetched.await else {
            return Some(Err(Problem::busy(
                format!("{name} is being fetched"),
                AGAIN,
            )));
        };
        match fetched {
            Ok(attached) => Some(Ok(Some(attached))),
            Err(error) if error.reason.is_missing() => Some(Ok(None)),
            Err(error) => {
                (self.report)(&error.to_string());
                if error.reason.is_unreachable() {
                    source.note(true);
                    return out();
                }
                let message = format!("{} did not give {name}: the server says why", registry.name);
                Some(Err(Problem::new(Code::Gateway, message)))
            }
        }
    }

    /// Returns the end of the pull of an image, which begins now if there is none.
    fn join(
        self: &Arc<Self>,
        store: &Store,
        key: Key,
        client: IpAddr,
    ) -> Option<watch::Receiver<Ended>> {
        let mut pulls = self.pulls();
        pulls.retain(|_, pull| !pull.is_over());
        if let Some(pull) = pulls.get_mut(&key) {
            pull.asked = Instant::now();
            return Some(pull.ended.clone());
        }
        let waiting = |is_one: &dyn Fn(&Key, &Pull) -> bool| {
            let all = pulls.iter().filter(|(other, pull)| is_one(other, pull));
            all.filter(|(_, pull)| pull.waits()).count()
        };
        let (reference, way) = &key;
        let is_alike =
            |other: &Key, _: &Pull| other.0.registry() == reference.registry() && other.1 == *way;
        if waiting(&is_alike) >= WAITING || waiting(&|_, pull| pull.client == client) >= OF_ONE {
            return None;
        }
        let (end, ended) = watch::channel(None);
        let pull = Pull {
            ended: ended.clone(),
            asked: Instant::now(),
            client,
        };
        pulls.insert(key.clone(), pull);
        drop(pulls);
        let (upstream, store) = (Arc::clone(self), store.clone());
        tokio::spawn(async move {
            // Dropped without a word, also by a panic, it is no result.
            if let Some(result) = upstream.attempt(&store, &key).await {
                let _ = end.send(Some((Instant::now(), result)));
            }
        });
        Some(ended)
    }

    /// Pulls an image when it is its turn; `None` if nobody waits for it any more.
    async fn attempt(&self, store: &Store, key: &Key) -> Option<Result<(), Failed>> {
        let (reference, way) = key;
        let registry = self.registry(reference)?;
        let source = match way {
            Way::Mirrors => &registry.by_mirrors,
            Way::Direct => &registry.direct,
        };
        // It is never closed.
        let _slot = source.slots.acquire().await;
        let asked = self.pulls().get(key).map(|pull| pull.asked);
        if asked.is_none_or(|asked| asked.elapsed() > FORGOTTEN) {
            return None;
        }
        if source.rests() {
            return Some(Err(Failed {
                code: Code::Gateway,
                message: format!("{} can't be reached", registry.name),
                is_out: true,
            }));
        }
        (self.report)(&format!("pulling {reference}"));
        let pulled = (self.pull)(store.clone(), reference.clone(), *way).await;
        match &pulled {
            Ok(digest) => (self.report)(&format!("pulled {reference}: {digest}")),
            Err(error) => (self.report)(&error.to_string()),
        }
        let failed = pulled.err().map(|error| Failed::of(&error, reference));
        source.note(failed.as_ref().is_some_and(|failed| failed.is_out));
        Some(failed.map_or(Ok(()), Err))
    }

    fn pulls(&self) -> MutexGuard<'_, HashMap<Key, Pull>> {
        lock(&self.pulls)
    }
}

impl Failed {
    /// Says what a client can make use of. Paths, settings and logins of this machine are for its owner alone.
    fn of(error: &PullError, reference: &Reference) -> Self {
        let failed = |code, message: String| Self {
            code,
            message,
            is_out: false,
        };
        let registry = reference.registry();
        match error {
            PullError::Registry(error) if error.reason.is_missing() => failed(
                Code::ManifestUnknown,
                format!("{registry} has no {reference}, or shows it to others only"),
            ),
            PullError::Registry(error) if error.reason.is_unreachable() => Self {
                is_out: true,
                ..failed(Code::Gateway, format!("{registry} can't be reached"))
            },
            PullError::Registry(_) => failed(
                Code::Gateway,
                format!("{registry} did not give {reference}: the server says why"),
            ),
            PullError::Refused { .. }
            | PullError::Signatures { .. }
            | PullError::Beside { .. }
            | PullError::Policy(_) => failed(
                Code::Denied,
                format!("the server's policy does not let {reference} be used"),
            ),
            PullError::Manifest { .. } => failed(
                Code::ManifestUnknown,
                format!("{reference} has no image that can be served: the server says why"),
            ),
            _ => failed(
                Code::Unknown,
                format!("{reference} was not pulled: the server says why"),
            ),
        }
    }
}

/// Returns the settings with which every registry itself is asked.
fn without_mirrors(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.peers.clear();
    for registry in settings.registry.values_mut() {
        registry.mirrors.clear();
    }
    settings
}

impl Default for Source {
    fn default() -> Self {
        Self {
            slots: Semaphore::new(PULLS),
            is_out: Mutex::default(),
        }
    }
}

impl Source {
    /// Notes whether it can be reached.
    fn note(&self, is_out: bool) {
        *self.out() = is_out.then(Instant::now);
    }

    /// Returns whether it could not be reached a moment ago.
    fn rests(&self) -> bool {
        self.out().is_some_and(|since| since.elapsed() < REST)
    }

    fn out(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.is_out)
    }
}

impl Pull {
    /// Returns whether it is under way, or waits for its turn.
    fn waits(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Returns whether it says nothing of now.
    fn is_over(&self) -> bool {
        match &*self.ended.borrow() {
            Some((when, _)) => when.elapsed() > FRESH,
            // Its task is gone.
            None => self.ended.has_changed().is_err(),
        }
    }
}
