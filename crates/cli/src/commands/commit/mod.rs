//! `mica commit`

mod change;
mod healthcheck;
mod words;

use micabox_ground::clock;
use micabox_image::{DockerConfig, ImageEdit, Reference};

use super::changed::Changed;
use super::notes;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, rfc3339};
use micabox_program::settings;

/// Make an image of a sandbox's changes, or of those in a mounted tree
///
/// The image has the layers of the sandbox's image and one more, and its configuration. A running
/// sandbox flushes its files, for at most ten seconds, and is paused for a moment. In a tree that was mounted
/// with `mica mount --rw`, changes wait meanwhile, unless they are in the kernel's overlay.
///
/// The digest that it prints is the store's. A registry has another one, which `mica push` prints,
/// since layers are packed for it first.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The author
    #[arg(short, long)]
    author: Option<String>,

    /// Change the image's configuration, as a Dockerfile's instruction does; may be repeated
    /// [CMD ["server"], ENV A=1, EXPOSE 80-82, HEALTHCHECK NONE]
    #[arg(short, long, value_name = "INSTRUCTION")]
    change: Vec<String>,

    /// A comment for the image's history
    #[arg(short, long)]
    message: Option<String>,

    /// Accepted as with Docker: a sandbox is paused for as short as it takes
    #[arg(short, long, hide = true)]
    pause: bool,

    /// Name or ID; or the directory that a tree is mounted on
    #[arg(value_name = "SANDBOX|MOUNTPOINT")]
    sandbox: String,

    /// Name of the image
    #[arg(value_name = "IMAGE")]
    image: Option<String>,
}

/// Makes an image.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let settings = settings::settings()?;
    let references = args.image.iter().map(|name| {
        name.parse::<Reference>()
            .map_err(|error| Failure::of(&error).context("reading the image's name"))
    });
    let references = references.collect::<Result<Vec<_>, _>>()?;
    let changed = Changed::find(&sandboxes, &args.sandbox)?;
    let now = clock::now();
    let (mut config, mut docker) = (changed.base()?.config(), DockerConfig::default());
    change::apply(&mut config, &mut docker, &args.change).map_err(Failure::new)?;
    let changes = ImageEdit {
        created: Some(rfc3339(now.as_secs())),
        author: args.author.clone(),
        created_by: changed.command(),
        comment: args.message.clone(),
        config: (!args.change.is_empty()).then_some(config),
        docker,
    };
    let limits = &settings.limits;
    let (image, found) = changed.commit(&changes, &references, limits)?;
    notes::print(&found, &args.sandbox);
    print(&format!("{}\n", image.manifest_digest))?;
    Ok(0)
}
