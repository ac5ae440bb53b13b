//! Bytes of packs: their indexes, ranges of them, and all of them where a registry has no ranges.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use micabox_chunk::{Compression, FRAME_HEADER, Index};
use micabox_ground::lock;
use micabox_image::{Descriptor, Digest, Store};
use micabox_lazy::LARGEST;
use micabox_oci::Hasher;
use micabox_registry::{Reason, RegistryError, Repository, channel};
use tokio::sync::OnceCell;

use super::Pack;
use crate::pull::blocking;

/// Bytes that are moved at a time.
const PIECE: usize = 128 << 10;

/// Why a blob can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BlobError {
    /// The registry's.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// It is not what its descriptor says.
    #[error("{0}")]
    Wrong(String),
    /// It can't be kept here.
    #[error("it can't be kept: {0}")]
    Kept(#[source] io::Error),
}

/// A snapshot's packs in a registry.
pub(super) struct Packs {
    pub(super) repository: Arc<Repository>,
    store: Store,
    /// With each pack the whole of it, once a range of it could not be had.
    packs: Vec<(Pack, OnceCell<Arc<File>>)>,
}

impl Packs {
    pub(super) fn new(repository: Arc<Repository>, store: &Store, packs: Vec<Pack>) -> Self {
        Self {
            repository,
            store: store.clone(),
            packs: packs
                .into_iter()
                .map(|pack| (pack, OnceCell::new()))
                .collect(),
        }
    }

    /// Returns a pack; none if there is none with this number.
    pub(super) fn get(&self, number: usize) -> Option<&Pack> {
        self.packs.get(number).map(|(pack, _)| pack)
    }

    /// Fetches bytes of a pack, which are not checked.
    pub(super) async fn part(
        &self,
        number: usize,
        range: Range<u64>,
    ) -> Result<Vec<u8>, BlobError> {
        let wrong = || BlobError::Wrong("there is no such pack".to_owned());
        let (pack, here) = self.packs.get(number).ok_or_else(wrong)?;
        if here.get().is_none() {
            let (blob, digest) = (&pack.blob, &pack.blob.digest);
            match self.repository.part(digest, blob, range.clone()).await {
                Err(error) if matches!(*error.reason, Reason::NoRanges) => {}
                part => return Ok(part?),
            }
        }
        let file = here.get_or_try_init(|| self.whole(&pack.blob)).await?;
        let file = Arc::clone(file);
        blocking(move || {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let read = file.read_exact_at(&mut bytes, range.start);
            read.map(|()| bytes).map_err(BlobError::Kept)
        })
        .await
    }

    /// Fetches and checks a pack's index.
    pub(super) async fn index(&self, number: usize) -> Result<Index, BlobError> {
        let wrong = || BlobError::Wrong("there is no such pack".to_owned());
        let pack = self.get(number).ok_or_else(wrong)?;
        let bytes = self.part(number, pack.index.clone()).await?;
        parse(pack, &bytes)
    }

    /// Fetches all of a pack into a file without a name.
    async fn whole(&self, blob: &Descriptor) -> Result<Arc<File>, BlobError> {
        let store = self.store.clone();
        let file = blocking(move || store.unnamed(b"")).await;
        let file = Arc::new(file.map_err(|error| BlobError::Kept(io::Error::other(error)))?);
        let out = Arc::clone(&file);
        stream(&self.repository, blob, move |bytes| {
            (&*out).write_all(bytes)
        })
        .await?;
        Ok(file)
    }
}

/// Fetches and checks the index of a pack in another repository.
pub(super) async fn index(repository: &Repository, pack: &Pack) -> Result<Index, BlobError> {
    let blob = &pack.blob;
    let bytes = repository
        .part(&blob.digest, blob, pack.index.clone())
        .await?;
    parse(pack, &bytes)
}

fn parse(pack: &Pack, bytes: &[u8]) -> Result<Index, BlobError> {
    let wrong = |problem: String| BlobError::Wrong(problem);
    let digest = Digest::of(bytes);
    if digest != pack.index_digest {
        return Err(wrong(format!(
            "its chunk index has the digest {digest}, and its manifest says {}",
            pack.index_digest
        )));
    }
    let index = Index::parse(bytes, pack.index.start - FRAME_HEADER);
    let index = index.map_err(|error| wrong(error.to_string()))?;
    if index.compression() != Compression::Zstd || !index.has_checksums() {
        return Err(wrong(
            "its chunks are no zstd frames with checksums".to_owned(),
        ));
    }
    let length = |range: Option<Range<u64>>| range.map_or(0, |range| range.end - range.start);
    let is_large =
        |n: usize| length(index.range(n)) > LARGEST || length(index.contents(n)) > LARGEST;
    if (0..index.len()).any(is_large) {
        return Err(wrong("it has frames of over 1 MiB".to_owned()));
    }
    Ok(index)
}

/// Fetches and checks a blob that fits into memory.
pub(super) async fn whole(
    repository: &Repository,
    blob: &Descriptor,
) -> Result<Vec<u8>, BlobError> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&kept);
    // No more than the descriptor's length arrives.
    stream(repository, blob, move |bytes| {
        lock(&all).extend_from_slice(bytes);
        Ok(())
    })
    .await?;
    Ok(std::mem::take(&mut *lock(&kept)))
}

/// Fetches and checks a blob. `keep` gets its bytes in order.
async fn stream(
    repository: &Repository,
    blob: &Descriptor,
    mut keep: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
) -> Result<(), BlobError> {
    let (sender, mut reader) = channel();
    let kept = tokio::task::spawn_blocking(move || -> io::Result<Result<Digest, io::Error>> {
        let mut hasher = Hasher::new();
        let mut buffer = vec![0; PIECE];
        loop {
            let count = reader.read(&mut buffer)?;
            let bytes = buffer.get(..count).unwrap_or_default();
            if bytes.is_empty() {
                return Ok(Ok(hasher.finish()));
            }
            hasher.update(bytes);
            if let Err(error) = keep(bytes) {
                return Ok(Err(error));
            }
        }
    });
    // Its error is the reason of the reader's.
    repository.stream(&blob.digest, blob, &[], sender).await?;
    let digest = crate::pull::joined(kept.await).map_err(BlobError::Kept)?;
    let digest = digest.map_err(BlobError::Kept)?;
    if digest != blob.digest {
        return Err(BlobError::Wrong(format!("it has the digest {digest}")));
    }
    Ok(())
}
