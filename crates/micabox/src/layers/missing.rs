//! The missing parts of layers: their registry has them.

use micabox_image::store::Image;

use crate::Error;
use crate::holders::shown;

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
    use crate::Error;

    /// What fetches missing parts of an image's layers when they are read.
    pub(in crate::layers) struct Missing(LazyLayers);

    impl Missing {
        pub(in crate::layers) fn of(image: &Image) -> Result<Self, Error> {
            let layers = LazyLayers::new(options(image)?);
            layers.map(Self).map_err(|error| incomplete(image, error))
        }

        pub(in crate::layers) fn open(
            &self,
            image: &Image,
            layer: &Layer,
        ) -> Result<micabox_lazy::Image, Error> {
            let opened = self.0.open(&image.store, layer);
            opened.map_err(|error| incomplete(image, error))
        }
    }

    pub(in crate::layers) fn complete(image: &Image) -> Result<(), Error> {
        let completed = complete_blocking(image, &options(image)?, Arc::new(Silent));
        completed.map_err(|error| incomplete(image, error))
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
    use crate::Error;

    const NO_REGISTRY: &str = "this program was built without the feature `registry`";

    pub(in crate::layers) struct Missing;

    impl Missing {
        pub(in crate::layers) fn of(image: &Image) -> Result<Self, Error> {
            Err(incomplete(image, NO_REGISTRY))
        }

        pub(in crate::layers) fn open(
            &self,
            image: &Image,
            _: &Layer,
        ) -> Result<micabox_lazy::Image, Error> {
            Err(incomplete(image, NO_REGISTRY))
        }
    }

    pub(in crate::layers) fn complete(image: &Image) -> Result<(), Error> {
        Err(incomplete(image, NO_REGISTRY))
    }
}

pub(super) use registry::{Missing, complete};
