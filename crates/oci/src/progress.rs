//! Events that a transfer of an image reports: a pull or a load, a push or a save.
//!
//! Events come from several threads at once, and often: an implementation should return quickly
//! and draw elsewhere.

use std::time::Duration;

use crate::{Descriptor, Digest};

/// Receives the events of a transfer.
pub trait Progress: Send + Sync {
    /// Handles `event`.
    fn event(&self, event: Event<'_>);
}

/// An event of a transfer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The image as a whole enters a phase.
    Phase(Phase),
    /// The layers are known, bottom first. Sent once for each image that is fetched or loaded, and
    /// once for all images that are pushed or saved.
    Layers(&'a [Layer]),
    /// The state of one layer changed.
    Layer {
        /// Its diff ID, in either direction.
        diff_id: &'a Digest,
        /// Its new state.
        state: LayerState<'a>,
    },
    /// How much of a file is packed or unpacked that is no layer's: a snapshot's or a volume's.
    File {
        /// What it is, for the user.
        name: &'a str,
        /// Bytes since its beginning.
        bytes: u64,
        /// Its length in bytes.
        of: u64,
    },
    /// One sentence for the user; the transfer continues.
    Notice(&'a str),
}

/// The phases of a transfer, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Looking for the manifest.
    Resolving,
    /// Moving layers.
    Layers,
    /// Merging the layers' metadata and publishing the image; pushing its manifest.
    Publishing,
    /// The image is at its destination.
    Done,
}

/// A layer to transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Identifies the layer in later events.
    pub diff_id: Digest,
    /// What is transferred: the blob of a layer that is fetched or loaded, or the archive of a
    /// layer that is pushed or saved, whose blob isn't made yet.
    pub blob: Descriptor,
}

/// State of a layer in a transfer.
#[derive(Debug)]
#[non_exhaustive]
pub enum LayerState<'a> {
    /// The destination already has the layer: nothing will be transferred.
    Present,
    /// The first `bytes` bytes of the blob were passed to the conversion. Decreases only when a
    /// pull starts over because the part that an earlier pull kept was damaged.
    Received {
        /// Bytes since the beginning of the blob.
        bytes: u64,
    },
    /// The first `bytes` bytes of the archive are packed into a new blob, or those of the image into chunks. Never
    /// decreases.
    Packed {
        /// Bytes since the beginning of the archive or image.
        bytes: u64,
    },
    /// The first `bytes` bytes of the layer's image are made of the chunks that it was packed into. Never decreases.
    Unpacked {
        /// Bytes since the beginning of the image.
        bytes: u64,
    },
    /// The first `bytes` bytes of the new blob were sent. Decreases when a transfer starts again.
    Sent {
        /// Bytes since the beginning of the blob.
        bytes: u64,
        /// Size of the blob in bytes.
        of: u64,
    },
    /// The transfer failed and continues after a pause.
    Retrying {
        /// What went wrong.
        reason: &'a str,
        /// Length of the pause.
        pause: Duration,
    },
    /// The layer is at its destination, complete and verified.
    Done,
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn event(&self, _: Event<'_>) {}
}
