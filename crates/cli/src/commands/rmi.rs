//! `mica rmi`

use micabox::image::store::HELD;
use micabox::{Error, Mounts, Sandboxes, StoreError};

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::size;
use micabox_program::settings;

/// Remove images
///
/// Removes a name; with the last name also the image, and layers that no other image needs. A
/// digest means the image with all its names.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Don't fail for images that are not there
    #[arg(short, long)]
    force: bool,

    /// Names or digests
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

/// Removes images.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    // Cleans up after killed owners and servers, whose sandboxes and trees would keep images in use.
    let sandboxes = settings::sandboxes(&store)?;
    sandboxes.list()?;
    Mounts::of(&sandboxes).tidy()?;
    let mut images = args.images.clone();
    if args.force {
        images.retain(|name| match store.image(name) {
            Err(error @ StoreError::NoImage { .. }) => {
                Failure::from(error).print();
                false
            }
            _ => true,
        });
    }
    super::for_each(&images, |name| {
        let removed = sandboxes.remove_image(name);
        let removed = removed.map_err(|error| of_user(&sandboxes, error))?;
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

/// Names what uses an image as its user does, unless it is a sandbox.
fn of_user(sandboxes: &Sandboxes, error: Error) -> Failure {
    let (image, user) = match &error {
        Error::Store(StoreError::InUse { image, sandbox }) => (image, sandbox.as_str()),
        _ => return error.into(),
    };
    if let Ok(Some(tree)) = Mounts::of(sandboxes).named(user) {
        let place = tree.place.display();
        return Failure::new(format!("image {image} is mounted on {place}"))
            .hint(format!("`mica umount {place}`"));
    }
    if user.starts_with(HELD) {
        let served = format!("image {image} is in use by the process that serves its layers");
        return Failure::new(served).hint("it ends by itself: try again later");
    }
    match user.strip_prefix("snapshot-") {
        Some(snapshot) => Failure::new(format!("image {image} is in use by snapshot `{snapshot}`"))
            .hint(format!("`mica snapshot rm {snapshot}`")),
        None => error.into(),
    }
}
