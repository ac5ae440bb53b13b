//! What a transfer of an image tells whoever watches it: a pull or a load, a push or a save.
//!
//! Events come from several threads at once, and often: an implementation should
//! return quickly and do its drawing elsewhere.

use std::time::Duration;

use crate::{Descriptor, Digest};

/// Receives what happens during a transfer.
pub trait Progress: Send + Sync {
    /// Takes note of `event`.
    fn event(&self, event: Event<'_>);
}

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The image as a whole enters a phase.
    Phase(Phase),
    /// The layers are known, bottom first. Said once for each image that comes in, and once
    /// for all that go out.
    Layers(&'a [Layer]),
    /// One layer moves on.
    Layer {
        /// Its diff ID, whichever way it goes.
        diff_id: &'a Digest,
        /// What became of it.
        state: LayerState<'a>,
    },
    /// Something that a user should read though the work goes on, as one sentence.
    Notice(&'a str),
}

/// What an image as a whole goes through, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Looking for the manifest.
    Resolving,
    /// Moving layers.
    Layers,
    /// Merging the layers' metadata and publishing the image; pushing its manifest.
    Publishing,
    /// The image is where it was to go.
    Done,
}

/// A layer that is to be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Names it in what follows.
    pub diff_id: Digest,
    /// What is moved: the blob that comes in, or the archive of a layer that goes out, whose
    /// blob is yet to be made.
    pub blob: Descriptor,
}

/// What became of a layer.
#[derive(Debug)]
#[non_exhaustive]
pub enum LayerState<'a> {
    /// Whoever should get it has it: nothing will be transferred.
    Present,
    /// The first `bytes` bytes of the blob have been handed to the conversion. Decreases only
    /// where a pull starts over because what an earlier one had kept was damaged.
    Received {
        /// Bytes since the beginning of the blob.
        bytes: u64,
    },
    /// The first `bytes` bytes of the archive are packed into a new blob. Never decreases.
    Packed {
        /// Bytes since the beginning of the archive.
        bytes: u64,
    },
    /// The first `bytes` bytes of the new blob were sent. Falls back when a transfer starts
    /// again.
    Sent {
        /// Bytes since the beginning of the blob.
        bytes: u64,
        /// Size of the blob in bytes.
        of: u64,
    },
    /// The transfer broke off and goes on after a pause.
    Retrying {
        /// What went wrong.
        reason: &'a str,
        /// How long the pause is.
        pause: Duration,
    },
    /// It is where it was to go, complete and verified.
    Done,
}

/// Watches nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn event(&self, _: Event<'_>) {}
}
