//! `mica commit`

use std::time::{SystemTime, UNIX_EPOCH};

use micabox_image::{Changes, Reference};

use crate::failure::Failure;
use crate::output::{print, rfc3339};
use crate::{Outcome, settings};

/// Make an image of what a sandbox has changed
///
/// The image has the layers of the sandbox's image and one more, and its configuration. A
/// running sandbox stands still for a moment; what it has not flushed may be missing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Who made it
    #[arg(short, long)]
    author: Option<String>,

    /// What to say of it, in the image's history
    #[arg(short, long)]
    message: Option<String>,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,

    /// Name of the image
    #[arg(value_name = "IMAGE")]
    image: Option<String>,
}

/// Makes an image.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let settings = settings::settings()?;
    let sandboxes = settings::sandboxes(&store)?;
    let references = args.image.iter().map(|name| {
        name.parse::<Reference>()
            .map_err(|error| Failure::of(&error).context("reading the image's name"))
    });
    let references = references.collect::<Result<Vec<_>, _>>()?;
    let record = sandboxes.get(&args.sandbox)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let changes = Changes {
        created: Some(rfc3339(now.map_or(0, |since| since.as_secs()))),
        author: args.author.clone(),
        created_by: Some(record.command.clone()),
        comment: args.message.clone(),
        config: None,
    };
    let image = sandboxes.commit(&store, &record.id, &changes, &references, &settings.limits)?;
    print(&format!("{}\n", image.manifest_digest))?;
    Ok(0)
}
