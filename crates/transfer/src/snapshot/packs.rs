//! Bytes of packs: their indexes, ranges of them, and all of them where a registry has no ranges.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use micabox_chunk::{Compression, FRAME_HEADER, Index};
use micabox_ground::lock;
use micabox_image::{Descriptor, Digest, Store};
use micabox_lazy::{Fetched, LARGEST};
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

    /// Fetches bytes of a pack, which are not checked. Returns the host as well that has sent them.
    pub(super) async fn part(
        &self,
        number: usize,
        range: Range<u64>,
    ) -> Result<Fetched, BlobError> {
        let (mut all, mut sender) = (Vec::new(), String::new());
        let take = |bytes: &[u8], from: &str| {
            all.extend_from_slice(bytes);
            from.clone_into(&mut sender);
            true
        };
        self.pieces(number, range, take).await?;
        let (bytes, from) = (all, sender);
        Ok(Fetched { bytes, from })
    }

    /// Fetches the same, and gives it to `take` piece by piece as it comes, in its order, with who has sent it. Once that
    /// returns false, no more is fetched.
    pub(super) async fn pieces(
        &self,
        number: usize,
        mut range: Range<u64>,
        mut take: impl FnMut(&[u8], &str) -> bool + Send,
    ) -> Result<(), BlobError> {
        let wrong = || BlobError::Wrong("there is no such pack".to_owned());
        let (pack, here) = self.packs.get(number).ok_or_else(wrong)?;
        if here.get().is_none() {
            let (blob, all) = (&pack.blob, range.clone());
            let counted = |bytes: &[u8], from: &str| {
                range.start += bytes.len() as u64;
                take(bytes, from)
            };
            match self
                .repository
                .pieces(&blob.digest, blob, all, counted)
                .await
            {
                Err(error) if matches!(*error.reason, Reason::NoRanges) => {}
                fetched => return Ok(fetched.map(drop)?),
            }
        }
        let file = here.get_or_try_init(|| self.whole(&pack.blob)).await?;
        let file = Arc::clone(file);
        let bytes = blocking(move || {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let read = file.read_exact_at(&mut bytes, range.start);
            read.map_err(BlobError::Kept).map(|()| bytes)
        });
        take(&bytes.await?, "its whole, which has its digest");
        Ok(())
    }

    /// Fetches and checks a pack's index.
    pub(super) async fn index(&self, number: usize) -> Result<Index, BlobError> {
        let wrong = || BlobError::Wrong("there is no such pack".to_owned());
        let pack = self.get(number).ok_or_else(wrong)?;
        let fetched = self.part(number, pack.index.clone()).await?;
        parse(pack, &fetched)
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
    let fetched = fetched(repository, &pack.blob, pack.index.clone()).await?;
    parse(pack, &fetched)
}

async fn fetched(
    repository: &Repository,
    blob: &Descriptor,
    range: Range<u64>,
) -> Result<Fetched, BlobError> {
    let (bytes, host) = repository.part(&blob.digest, blob, range).await?;
    let from = host.to_owned();
    Ok(Fetched { bytes, from })
}

fn parse(pack: &Pack, fetched: &Fetched) -> Result<Index, BlobError> {
    let Fetched { bytes, from } = fetched;
    let wrong = |problem: String| BlobError::Wrong(format!("{problem}, from {from}"));
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
