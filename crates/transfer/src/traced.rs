//! A pull's progress as events of `tracing`.

use std::sync::Arc;

use micabox_image::progress::{Event, LayerState, Progress};
use tracing::{debug, info, warn};

/// Passes all events on, and traces those that are not about single bytes.
pub(crate) struct Traced {
    /// The image that is pulled.
    pub(crate) image: String,
    /// Receives the events.
    pub(crate) next: Arc<dyn Progress>,
}

impl Progress for Traced {
    fn event(&self, event: Event<'_>) {
        let image = &self.image;
        match &event {
            Event::Phase(phase) => debug!(image, ?phase, "pulling"),
            Event::Layers(layers) => info!(image, layers = layers.len(), "pulling"),
            Event::Layer { diff_id, state } => match state {
                LayerState::Present => debug!(image, %diff_id, "the layer is here"),
                LayerState::Done => info!(image, %diff_id, "the layer is complete"),
                LayerState::Retrying { reason, pause } => {
                    warn!(image, %diff_id, reason, ?pause, "the transfer failed, and is tried again");
                }
                _ => {}
            },
            Event::Notice(text) => info!(image, notice = text),
            _ => {}
        }
        self.next.event(event);
    }
}
