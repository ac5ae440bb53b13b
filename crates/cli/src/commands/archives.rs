//! Archives of images that came as EROFS images, for commands that make something of them.

use std::sync::Arc;

use micabox_image::progress::Silent;
use micabox_image::{Progress, Store};
use micabox_transfer::{PullOptions, bring_archives_blocking};

use micabox_program::failure::Failure;
use micabox_program::{bars, settings};

/// Makes sure that an image can be saved and pushed: fetches its archives if it came as EROFS images.
pub fn bring(store: &Store, image: &str, quiet: bool) -> Result<(), Failure> {
    // A missing image is the first error to report.
    store.image(image)?;
    let options = PullOptions::new(settings::settings()?);
    let progress = || -> Arc<dyn Progress> {
        if quiet {
            Arc::new(Silent)
        } else {
            bars::watch(image)
        }
    };
    bring_archives_blocking(store, image, &options, progress).map_err(|error| {
        let what = format!("fetching the archives of {image}, which came as EROFS images");
        Failure::from(error).context(&what)
    })
}
