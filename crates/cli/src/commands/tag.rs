//! `mica tag`

use micabox_image::Reference;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::settings;

/// Give an image another name
///
/// An image that had the name loses it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image: a name or a digest
    #[arg(value_name = "IMAGE")]
    image: String,

    /// The new name: NAME or NAME:TAG
    #[arg(value_name = "NAME")]
    name: Reference,
}

/// Gives an image another name.
pub fn execute(args: &Args) -> Outcome {
    if args.name.digest().is_some() {
        return Err(Failure::new(format!(
            "cannot tag the image `{}`: a name with a digest can't be given",
            args.name.familiar()
        ))
        .hint("leave the digest out: NAME or NAME:TAG"));
    }
    let store = settings::store()?;
    let image = store.image(&args.image)?;
    store.tag_as(&args.name, &image)?;
    Ok(0)
}
