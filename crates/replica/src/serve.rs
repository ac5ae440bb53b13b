//! Accepts connections, and serves each until its client leaves.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use micabox_image::Store;
use micabox_listen::{Connection, Connections, HEAD, Holding, Patient, Reading};
use micabox_oci::reference::DEFAULT_REGISTRY;
use micabox_oci::{Digest, Reference};
use micabox_transfer::{attached_to, signatures_name};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::answer::{self, Body};
use crate::attached::{Attachments, is_whole};
use crate::blob::Transfers;
use crate::catalog::{Catalog, Published};
use crate::problem::{Code, Problem};
use crate::upstream::{AGAIN, Way};
use crate::{Access, Report, Tls, Upstream};

/// How long a client waits for the signatures of its image to be asked for.
const LEARNING: Duration = Duration::from_secs(5);

/// What is served, and to whom.
pub struct Replica {
    catalog: Arc<Catalog>,
    pub(crate) access: Access,
    upstream: Option<Arc<Upstream>>,
    tls: Option<Tls>,
    pub(crate) report: Report,
    pub(crate) transfers: Arc<Transfers>,
    pub(crate) attachments: Attachments,
}

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The system has no sockets or handlers left.
    #[error("cannot serve: {0}")]
    System(#[from] io::Error),
}

impl Replica {
    /// Serves a store's images to those who have access, in clear without `tls`; `with_erofs`, those of archives as EROFS
    /// images as well. `report` gets what its owner should know.
    #[must_use]
    pub fn new(
        store: Store,
        with_erofs: bool,
        access: Access,
        tls: Option<Tls>,
        upstream: Option<Upstream>,
        report: Report,
    ) -> Self {
        Self {
            catalog: Arc::new(Catalog::new(store, with_erofs)),
            access,
            upstream: upstream.map(Arc::new),
            tls,
            report,
            transfers: Arc::default(),
            attachments: Attachments::default(),
        }
    }

    /// Returns whether anyone may read who can connect.
    pub(crate) fn is_open(&self) -> bool {
        let knows_clients = self.tls.as_ref().is_some_and(Tls::knows_clients);
        self.access.is_open() && !knows_clients
    }

    /// Returns the registry of names that say none.
    pub(crate) fn default_registry(&self) -> &str {
        let upstream = self.upstream.as_deref();
        upstream.map_or(DEFAULT_REGISTRY, Upstream::first)
    }

    /// Looks something up in a thread.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Catalog) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let catalog = Arc::clone(&self.catalog);
        spawn_blocking(move || work(&catalog))
            .await
            .unwrap_or_else(|error| Err(Problem::ours("a thread has failed", error.to_string())))
    }

    /// Returns the manifest of a name: the registry's of now, where it is one to pull from, else the store's.
    /// Nothing new is pulled for a request through a server like this one, which may be waiting for this one's own pull. What
    /// is here may have moved: the registry itself is asked then, and none of its mirrors.
    ///
    /// The signatures of what was pulled are asked for as well: they are to be known when its registry is gone.
    pub(crate) async fn named(
        &self,
        reference: Reference,
        is_through_a_replica: bool,
        address: IpAddr,
    ) -> Result<Published, Problem> {
        if let Some(digest) = reference.tag().and_then(attached_to) {
            return self.attached(reference, digest, is_through_a_replica).await;
        }
        let mut failed = None;
        let upstream = self.upstream.as_ref();
        let mut upstream = upstream.filter(|upstream| upstream.pulls_from(&reference));
        if upstream.is_some() {
            let is_here = self.has(&reference).await;
            upstream = upstream.filter(|_| is_here || !is_through_a_replica);
            if let Some(upstream) = upstream {
                let way = way(is_through_a_replica);
                let brought = self.bring(upstream, &reference, way, address, is_here);
                failed = brought.await.err();
            }
        }
        let name = reference.clone();
        let here = self.blocking(move |catalog| catalog.named(&name)).await;
        if let (Some(upstream), Ok(here), None) = (upstream, &here, &failed) {
            self.learn_signatures(upstream, &reference, here).await;
        }
        match (here, failed) {
            (Err(problem), Some(failed)) if problem.code == Code::ManifestUnknown => Err(failed),
            // What a policy refuses now is not served because it was taken before.
            (_, Some(failed)) if failed.code == Code::Denied => Err(failed),
            // What was pulled before is better than nothing.
            (here, _) => here,
        }
    }

    /// Returns whether the store has an image of this name.
    async fn has(&self, name: &Reference) -> bool {
        let name = name.clone();
        let has = self.blocking(move |catalog| Ok(catalog.has(&name)));
        has.await.unwrap_or_default()
    }

    /// Brings an image to the store. The result of a pull answers for a moment, in which an image may be removed: then
    /// it is pulled again.
    pub(crate) async fn bring(
        &self,
        upstream: &Arc<Upstream>,
        name: &Reference,
        way: Way,
        address: IpAddr,
        is_here: bool,
    ) -> Result<(), Problem> {
        for _ in 0..2 {
            let fetched = upstream.fetch(self.catalog.store(), name, way, address, is_here);
            fetched.await?;
            if self.has(name).await {
                return Ok(());
            }
            upstream.forget(name, way);
        }
        let message = format!("{name} was removed right after it was pulled");
        Err(Problem::busy(message, AGAIN))
    }

    /// Returns a manifest or an index by its digest. One that is not here is pulled, by its name, if what is pulled is
    /// kept as it came: an image of another platform too, and what is no image is passed on. Where a policy asks something
    /// of that name, it is asked first, and what is no image is not passed on.
    pub(crate) async fn by_digest(
        &self,
        digest: Digest,
        name: Result<Reference, Problem>,
        is_through_a_replica: bool,
        address: IpAddr,
    ) -> Result<Published, Problem> {
        if let Some(signature) = self.attachments.signature(&digest) {
            return Ok(signature);
        }
        let upstream = self.upstream.as_ref();
        let pulled = upstream
            .zip(name.ok())
            .filter(|(upstream, name)| upstream.pulls_from(name));
        let is_judged = matches!(&pulled, Some((upstream, name)) if upstream.is_judged(name));
        if let Some((_, name)) = &pulled
            && !is_judged
            && let Some(other) = self.attachments.other(name)
        {
            return Ok(other);
        }
        let here = self.blocking(move |catalog| catalog.manifest(&digest));
        let missing = match here.await {
            Err(problem) if problem.code == Code::ManifestUnknown => problem,
            here => {
                if let Some((upstream, name)) = pulled.filter(|_| is_judged) {
                    let way = way(is_through_a_replica);
                    self.judge(upstream, digest, &name, way, address).await?;
                }
                return here;
            }
        };
        let pulled = pulled.filter(|(upstream, _)| upstream.keeps_blobs() && !is_through_a_replica);
        let Some((upstream, name)) = pulled else {
            return Err(missing);
        };
        match self
            .bring(upstream, &name, Way::Mirrors, address, false)
            .await
        {
            Ok(()) => {
                let here = self.blocking(move |catalog| catalog.manifest(&digest));
                let here = here.await?;
                self.learn_signatures(upstream, &name, &here).await;
                Ok(here)
            }
            Err(problem) if problem.code == Code::ManifestUnknown => {
                // An attestation, for example, or an index without an image for this machine.
                let Some(Ok(Some(artifact))) = upstream.attached(&name).await else {
                    return Err(problem);
                };
                if is_judged {
                    let message = format!(
                        "the server's policy decides about images, and {name} is none that it can decide about"
                    );
                    return Err(Problem::new(Code::Denied, message));
                }
                if !is_whole(&artifact) {
                    return Err(problem);
                }
                self.attachments.keep_other(name.clone(), artifact);
                self.attachments.other(&name).ok_or(problem)
            }
            Err(problem) => Err(problem),
        }
    }

    /// Asks for the signatures of an image that was pulled, those of its manifests that were not asked for before. One
    /// that can't be had now is asked for again when a client wants it.
    async fn learn_signatures(&self, upstream: &Upstream, image: &Reference, found: &Published) {
        let manifests = found.manifests();
        let signed = self.blocking(move |catalog| Ok(catalog.served_of(manifests)));
        let learn = async {
            for manifest in signed.await.unwrap_or_default() {
                let Some(name) = signatures_name(image, &manifest) else {
                    return;
                };
                if self.attachments.named(&name).is_none()
                    && let Some(Ok(attached)) = upstream.attached(&name).await
                {
                    self.attachments.keep(name, attached);
                }
            }
        };
        // The client waits for the image.
        let _ = timeout(LEARNING, learn).await;
    }

    /// Returns what is attached to the manifest of this digest: as its registry has it now, where it is one to pull
    /// from, else as it was passed on before, or as the store has it.
    async fn attached(
        &self,
        name: Reference,
        manifest: Digest,
        is_through_a_replica: bool,
    ) -> Result<Published, Problem> {
        let mut failed = None;
        if let Some(upstream) = self.upstream.as_ref().filter(|_| !is_through_a_replica) {
            match upstream.attached(&name).await {
                Some(Ok(attached)) => self.attachments.keep(name.clone(), attached),
                Some(Err(problem)) => failed = Some(problem),
                None => {}
            }
        }
        match self.attachments.named(&name) {
            Some(Some(kept)) => return Ok(kept),
            // Its registry had none when it could be asked.
            Some(None) => failed = None,
            None => {}
        }
        let missing = || {
            let message = format!("nothing is known that is attached as {name}");
            Problem::new(Code::ManifestUnknown, message)
        };
        if name.tag().is_some_and(|tag| tag.ends_with(".order")) {
            let found = self.blocking(move |catalog| Ok(catalog.order(&manifest)));
            // It is a hint, and no client has to wait for a registry that is gone.
            return found.await?.ok_or_else(missing);
        }
        // Whether an image is signed is not known then: "none" would be a statement about it.
        Err(failed.unwrap_or_else(missing))
    }
}

/// Returns the way that an image comes for a request.
fn way(is_through_a_replica: bool) -> Way {
    if is_through_a_replica {
        Way::Direct
    } else {
        Way::Mirrors
    }
}

/// Serves until a signal ends this process (SIGINT, SIGTERM).
///
/// # Errors
///
/// [`ServeError`].
pub async fn serve(replica: Replica, listener: TcpListener) -> Result<(), ServeError> {
    let mut end = micabox_listen::ended()?;
    let replica = Arc::new(replica);
    let connections = Arc::new(Connections::default());
    loop {
        let (stream, connection) = tokio::select! {
            accepted = micabox_listen::accept(&listener, &connections) => accepted?,
            _ = end.read_u8() => return Ok(()),
        };
        tokio::spawn(attend(Arc::clone(&replica), stream, Arc::new(connection)));
    }
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    pub address: IpAddr,
    /// Whether it reached an address of this machine alone.
    pub is_local: bool,
}

/// Answers a client's requests until it leaves, or its place is needed by another.
async fn attend(replica: Arc<Replica>, stream: TcpStream, place: Arc<Connection>) {
    let (Ok(address), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else {
        return;
    };
    let client = Client {
        address: address.ip().to_canonical(),
        is_local: here.ip().to_canonical().is_loopback(),
    };
    let stream = Patient::new(stream);
    let reading = stream.reading();
    let of = Arc::clone(&place);
    let served = async {
        match replica.tls.clone() {
            None => converse(replica, stream, client, reading, of).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(HEAD, tls.acceptor.accept(stream)).await {
                    converse(replica, stream, client, reading, of).await;
                }
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = place.given_up() => {}
    }
}

async fn converse(
    replica: Arc<Replica>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: Client,
    reading: Reading,
    place: Arc<Connection>,
) {
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (replica, reading) = (Arc::clone(&replica), reading.clone());
        let used = Used(Arc::clone(&place));
        async move {
            // No request has a body that matters. One that is sent all the same ends the connection.
            let (request, _) = request.into_parts();
            let let_in = || used.0.set_used(true);
            let reply = answer::answer(&replica, &request, client, let_in).await;
            reading.begin(&reply);
            Ok::<_, Infallible>(reply.map(|body| Body::new(Holding::new(body, used))))
        }
    });
    let connection = micabox_listen::http().serve_connection(TokioIo::new(stream), service);
    // The client has its own idea of what went wrong.
    let _ = connection.await;
}

/// The use of a connection by a request, until its reply is sent.
struct Used(Arc<Connection>);

impl Drop for Used {
    fn drop(&mut self) {
        self.0.set_used(false);
    }
}
