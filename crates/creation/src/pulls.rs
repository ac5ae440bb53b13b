//! What a caller that has an image pulled may set about the pull.

use std::sync::Arc;

use micabox_image::Reference;
use micabox_image::progress::Progress;
use micabox_transfer::Settings;

use micabox_program::failure::Failure;

/// How images that are not here come.
#[derive(Clone, Copy, Default)]
pub struct Pulls<'a> {
    /// Where it is reported how far they are, in place of the user's terminal.
    pub progress: Option<&'a Arc<dyn Progress>>,
    /// Decides whether an image may be asked for, where a client names it and not the user. Then no other host is
    /// asked either, whatever the image's manifest names.
    pub bound: Option<&'a dyn Bound>,
}

/// A bound to the registries that are asked for images.
pub trait Bound {
    /// Fails if this image's registry is not to be asked.
    fn may_pull(&self, image: &Reference, settings: &Settings) -> Result<(), Failure>;
}
