//! The missing parts of an image's layers: their registry has them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use micabox_error::Error;
use micabox_image::store::Image;
use micabox_lazy::{AHEAD_ROOM, Ahead, Order, Recorder};

use crate::holder::shown;
use crate::served::has_room;

/// An image's layers of which only a part is here.
pub(super) struct Missing {
    /// By number.
    layers: HashMap<usize, Arc<micabox_lazy::Image>>,
    recorder: Arc<Recorder>,
}

impl Missing {
    /// Opens an image's layers of which only a part is here.
    ///
    /// # Errors
    /// [`Error::Incomplete`].
    pub(super) fn of(image: &Image) -> Result<Self, Error> {
        let recorder = Arc::default();
        let mut layers = HashMap::new();
        if image.is_lazy() {
            let registry = registry::Layers::of(image)?;
            for (number, layer) in image.layers.iter().enumerate() {
                if image.store.is_lazy(layer) {
                    let opened = registry.open(image, layer)?.recorded(number, &recorder);
                    layers.insert(number, Arc::new(opened));
                }
            }
        }
        Ok(Self { layers, recorder })
    }

    /// Returns a layer by its number, if only a part of it is here.
    pub(super) fn layer(&self, number: usize) -> Option<&Arc<micabox_lazy::Image>> {
        self.layers.get(&number)
    }

    /// Begins to fetch what an earlier start has read, in threads. They end where the store's disk would lose its reserve.
    pub(super) fn prefetch(&self, order: &Order, store: &Path) {
        let (layers, store) = (self.layers.clone(), store.to_owned());
        Ahead::begin(order, move |layer, chunks| {
            let layer = layers.get(&layer);
            // A read of the chunk fails with the reason.
            has_room(&store, AHEAD_ROOM) && layer.is_none_or(|layer| layer.prefetch(chunks).is_ok())
        });
    }

    /// Keeps the order in which layers were read so far, unless the image has one of another start.
    pub(super) fn keep_order(&self, image: &Image) {
        let (store, digest) = (&image.store, &image.manifest_digest);
        let kept = store.start_order(digest);
        if let Some(order) = self.recorder.order_to_keep(kept.as_ref()) {
            // Without it, a later start is slower.
            let _ = store.keep_start_order(digest, &order);
        }
    }
}

/// Returns what the settings have of it.
pub(super) fn completes_in_background() -> bool {
    registry::completes_in_background()
}

/// Fetches the rest of an image's layers.
///
/// # Errors
/// [`Error::Incomplete`].
pub(super) fn complete(image: &Image) -> Result<(), Error> {
    registry::complete(image)
}

fn incomplete(image: &Image, problem: impl ToString) -> Error {
    Error::Incomplete {
        image: shown(image),
        problem: problem.to_string(),
    }
}

#[cfg(feature = "registry")]
mod registry {
    use std::sync::Arc;

    use micabox_image::progress::Silent;
    use micabox_image::store::{Image, Layer};
    use micabox_transfer::{LazyLayers, PullOptions, Settings, complete_blocking};

    use super::incomplete;
    use micabox_error::Error;

    /// What opens layers, and fetches what is missing of them when it is read.
    pub(super) struct Layers(LazyLayers);

    impl Layers {
        pub(super) fn of(image: &Image) -> Result<Self, Error> {
            let layers = LazyLayers::new(options(image)?);
            layers.map(Self).map_err(|error| incomplete(image, error))
        }

        pub(super) fn open(
            &self,
            image: &Image,
            layer: &Layer,
        ) -> Result<micabox_lazy::Image, Error> {
            let opened = self.0.open(&image.store, layer);
            opened.map_err(|error| incomplete(image, error))
        }
    }

    pub(super) fn complete(image: &Image) -> Result<(), Error> {
        let options = options(image)?;
        let complete = || complete_blocking(image, &options, Arc::new(Silent));
        // The caller's thread may be one of an asynchronous runtime.
        let completed = std::thread::scope(|scope| scope.spawn(complete).join());
        match completed {
            Ok(completed) => completed.map_err(|error| incomplete(image, error)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    pub(super) fn completes_in_background() -> bool {
        // Settings that can't be read are an error where they are needed.
        Settings::load().map_or(true, |settings| settings.make_whole)
    }

    /// Returns those of this user's settings.
    fn options(image: &Image) -> Result<PullOptions, Error> {
        let settings = Settings::load().map_err(|error| incomplete(image, error))?;
        Ok(PullOptions::new(Arc::new(settings)))
    }
}

#[cfg(not(feature = "registry"))]
mod registry {
    use micabox_image::store::{Image, Layer};

    use super::incomplete;
    use micabox_error::Error;

    const NO_REGISTRY: &str = "this program was built without the feature `registry`";

    pub(super) struct Layers;

    pub(super) fn completes_in_background() -> bool {
        true
    }

    impl Layers {
        pub(super) fn of(image: &Image) -> Result<Self, Error> {
            Err(incomplete(image, NO_REGISTRY))
        }

        pub(super) fn open(&self, image: &Image, _: &Layer) -> Result<micabox_lazy::Image, Error> {
            Err(incomplete(image, NO_REGISTRY))
        }
    }

    pub(super) fn complete(image: &Image) -> Result<(), Error> {
        Err(incomplete(image, NO_REGISTRY))
    }
}
