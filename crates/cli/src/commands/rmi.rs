//! `mica rmi`

use crate::output::size;
use crate::{Outcome, settings};

/// Remove images
///
/// Removes a name; with the last name also the image, and layers that no other image needs. A
/// digest means the image with all its names.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names or digests
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

/// Removes images.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    // Cleans up after killed owners, whose sandboxes would keep images in use.
    settings::sandboxes(&store)?.list()?;
    super::for_each(&args.images, |name| {
        let removed = store.remove(name)?;
        let names: Vec<_> = removed
            .references
            .iter()
            .map(|name| name.familiar())
            .collect();
        let what = if names.is_empty() {
            name.to_owned()
        } else {
            names.join(", ")
        };
        Ok(match removed.pruned {
            Some(pruned) => format!("{what}: removed, {} freed", size(pruned.size)),
            None => format!("{what}: removed the name"),
        })
    })
}
