//! `mica umount`

use std::path::PathBuf;

use micabox::{Mounts, Unmounted};

use micabox_program::failure::{Failure, Outcome, print_all};
use micabox_program::output::write_stderr;
use micabox_program::{settings, visible};

/// Unmount what `mica mount` and `mica memfs` have mounted
///
/// Changes in memory are gone then; `mica memfs --save` saves them first. What is in use goes when the last process that uses it ends; no path
/// leads there any more.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directories that trees are mounted on
    #[arg(required = true, value_name = "MOUNTPOINT")]
    places: Vec<PathBuf>,
}

/// Unmounts each; continues after a failure.
pub fn execute(args: &Args) -> Outcome {
    let mounts = Mounts::of(&settings::sandboxes(&settings::store()?)?);
    let mut failures = Vec::new();
    for place in &args.places {
        match mounts.unmount(place) {
            Ok(Unmounted::Gone) => {}
            Ok(Unmounted::InUse) => write_stderr(&format!(
                "mica: {} is unmounted; processes that use it do so until they end\n",
                visible::line(&place.to_string_lossy())
            )),
            Err(error) => failures.push(Failure::from(error)),
        }
    }
    print_all(&failures);
    Ok(u8::from(!failures.is_empty()))
}
