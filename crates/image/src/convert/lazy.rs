//! Checks a layer of which only the metadata is here, in a jailed process: its image's, without a byte of a file.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use micabox_chunk::{ChunkError, Index};
use micabox_erofs::{BLOCK_SIZE, Error as ErofsError};
use micabox_jail::{Call, Kind, Worker};
use micabox_tar::printable;
use serde::{Deserialize, Serialize};

use super::converted::Converted;
use super::error::Reason;
use super::jail::{Patience, Refusal, jail_limits, reason};
use super::native::exceeded;
use super::{Place, device};
use crate::identity;
use crate::limits::Limit;
use crate::manifest::Parts;
use crate::store::Checksum;
use crate::{Digest, Limits};

/// The kind of worker that checks a layer's metadata.
pub const CHECKER: Kind = Kind::parser::<Task>();

/// A request to a worker. Its files are the blob, as far as it is here, and the image to write.
#[derive(Serialize, Deserialize)]
pub(super) struct Task {
    /// The chunk index, and where the last chunk ends.
    index: Vec<u8>,
    end: u64,
    /// Length of the image and where its metadata begins, in bytes.
    length: u64,
    metadata: u64,
    /// What the manifest says of the whole image.
    checksum: Checksum,
    archive: Digest,
    blob_size: u64,
    limits: Limits,
}

impl Call for Task {
    const KIND: &'static str = "check-metadata";
    type Reply = Converted;
    type Error = Refusal;

    fn run(self, files: Vec<OwnedFd>) -> Result<Converted, Refusal> {
        let [blob, image] = <[OwnedFd; 2]>::try_from(files)
            .map_err(|_| Refusal::from(Reason::Worker("two files are needed".to_owned())))?;
        self.check(&blob.into(), image.into())
            .map_err(Refusal::from)
    }
}

impl Task {
    /// Writes the metadata at its place in `image`, and checks it.
    fn check(self, blob: &File, image: File) -> Result<Converted, Reason> {
        let most = self.limits.metadata_size;
        if self.length - self.metadata.min(self.length) > most {
            return exceeded(Limit::MetadataSize, most, None);
        }
        if self.length > self.limits.layer_size {
            return exceeded(Limit::LayerSize, self.limits.layer_size, None);
        }
        let index = Index::parse(&self.index, self.end)
            .map_err(|error| Reason::ForeignErofs(error.to_string()))?;
        if self.length > index.size() {
            return foreign("its chunk index is of a shorter image");
        }
        image.set_len(self.length).map_err(Reason::Write)?;
        let mut head = Vec::new();
        for number in metadata_chunks(&index, self.metadata, self.length) {
            let range = index.range(number).unwrap_or_default();
            let contents = index.contents(number).unwrap_or_default();
            let mut packed = vec![0; (range.end - range.start) as usize];
            blob.read_exact_at(&mut packed, range.start)
                .map_err(Reason::Source)?;
            let bytes = index.decode(number, &packed).map_err(|error| match error {
                ChunkError::Checksum(_) => Reason::Source(io::Error::other(error)),
                error => Reason::Compressed(printable(error.to_string().as_bytes())),
            })?;
            let own = self.length.saturating_sub(contents.start);
            let own = bytes.get(..own.min(bytes.len() as u64) as usize);
            let own = own.unwrap_or_default();
            if number == 0 {
                head = own.to_vec();
            }
            image
                .write_all_at(own, contents.start)
                .map_err(Reason::Write)?;
        }
        let unusable =
            |error: ErofsError| Reason::ForeignErofs(printable(error.to_string().as_bytes()));
        let length = micabox_erofs::reader::length_of(&head).map_err(unusable)?;
        let metadata = micabox_erofs::reader::metadata_start(&head).map_err(unusable)?;
        if (length, metadata) != (self.length, self.metadata) {
            return foreign("its manifest has another length, or another place of its metadata");
        }
        let written = device::Written::of(image, self.checksum, length / BLOCK_SIZE);
        let uuid = identity::layer_uuid(&self.archive);
        device::check(written, index.size(), self.blob_size, uuid, &self.limits)
    }
}

fn foreign<T>(problem: &str) -> Result<T, Reason> {
    Err(Reason::ForeignErofs(problem.to_owned()))
}

/// Returns the chunks that have an image's metadata: its first block, and from `metadata` to its end.
pub fn metadata_chunks(index: &Index, metadata: u64, length: u64) -> Vec<usize> {
    let from = index.find(metadata).unwrap_or(index.len());
    let end = length.checked_sub(1).and_then(|last| index.find(last));
    let rest = from.max(1)..end.map_or(0, |last| last + 1);
    std::iter::once(0).chain(rest).collect()
}

/// What is known of a layer besides the chunks of its metadata.
pub(crate) struct Known<'a> {
    /// The chunk index.
    pub index: &'a [u8],
    pub parts: &'a Parts,
    pub archive: Digest,
    pub blob_size: u64,
}

/// Makes a worker write the metadata into `image`, and check it.
pub(crate) fn check(
    known: &Known<'_>,
    blob: &File,
    image: &File,
    limits: &Limits,
    place: Place,
) -> Result<Converted, Reason> {
    let task = Task {
        index: known.index.to_vec(),
        end: known.parts.index.start - micabox_chunk::FRAME_HEADER,
        length: known.parts.length,
        metadata: known.parts.metadata,
        checksum: known.parts.checksum,
        archive: known.archive,
        blob_size: known.blob_size,
        limits: limits.clone(),
    };
    let copy = |file: &File| file.try_clone().map_err(Reason::Write);
    if place == Place::Here {
        return task.check(blob, copy(image)?);
    }
    let files = vec![copy(blob)?.into(), copy(image)?.into()];
    let worker = Worker::start(&task, files, &jail_limits(limits)).map_err(reason)?;
    let mut patience = Patience::new([image, image], limits.idle_timeout);
    let converted = worker.wait_while(|| patience.lasts(0));
    let converted = converted.map_err(reason)?;
    if converted.recipe.is_some() || converted.blocks > u64::from(u32::MAX) {
        return Err(Reason::Worker("its answer contradicts itself".into()));
    }
    Ok(converted)
}
