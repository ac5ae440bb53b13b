//! The image of a sandbox, which is pulled if it is not here.

use std::sync::Arc;

use micabox::Cancel;
use micabox_image::progress::Silent;
use micabox_image::store::{self, Image};
use micabox_image::{Reference, Store};
use micabox_spec::options::{MachineOptions, Pull};
use micabox_spec::words::OrNone;
use micabox_transfer::{PullOptions, PullPolicy, pull_blocking};

use crate::pulls::Pulls;
use crate::snapshots::is_of_snapshot;
use micabox_program::failure::Failure;
use micabox_program::{bars, packing, settings};

/// Finds an image, and pulls it if necessary and allowed. `cancel` ends that.
pub fn find_image(
    machine: &MachineOptions,
    store: &Store,
    name: &str,
    pulls: Pulls<'_>,
    cancel: &Cancel,
) -> Result<Image, Failure> {
    let mut options = PullOptions::new(settings::settings()?);
    if let Some(policy) = machine.pull {
        options.policy = policy_of(policy);
    }
    if let Some(lazy) = machine.lazy {
        options.lazy = lazy;
    }
    options.platform = machine
        .platform
        .clone()
        .and_then(|OrNone(platform)| platform);
    options.cancellation = cancel.pulls();
    let mut unusable = None;
    if options.policy != PullPolicy::Always && options.platform.is_none() {
        match store.image(name) {
            Ok(image) if options.lazy || options.policy == PullPolicy::Never => {
                return Ok(image);
            }
            Ok(image) if !image.is_lazy() => return Ok(image),
            // The rest of it is fetched.
            Ok(_) => {}
            // Pulling an image again repairs one that lost a layer.
            Err(error) if options.policy == PullPolicy::Never => return Err(error.into()),
            Err(error @ store::Error::Unusable { .. }) => unusable = Some(error),
            Err(_) => {}
        }
    }
    let reference: Reference = name
        .parse()
        .map_err(|error| Failure::of(&error).context("reading the image's name"))?;
    if let Some(bound) = pulls.bound.filter(|_| options.policy != PullPolicy::Never) {
        bound.may_pull(&reference, &options.settings)?;
        options.layers_from_elsewhere = false;
    }
    let progress = match pulls.progress {
        Some(progress) => Arc::clone(progress),
        None if machine.quiet => Arc::new(Silent) as _,
        None => bars::watch(&reference.familiar()),
    };
    let image = pull_blocking(store, &reference, &options, progress);
    let image = image.map_err(|error| match unusable {
        None if is_of_snapshot(&error) => {
            Failure::from(error).hint(format!("it is a snapshot: start it with `--from {name}`"))
        }
        None => Failure::from(error),
        Some(why) => Failure::from(error).hint(format!("it is in the store, but {why}")),
    })?;
    if pulls.bound.is_none() {
        packing::after_pull(&options.settings);
    }
    Ok(image)
}

fn policy_of(pull: Pull) -> PullPolicy {
    match pull {
        Pull::Always => PullPolicy::Always,
        Pull::Missing => PullPolicy::Missing,
        Pull::Never => PullPolicy::Never,
    }
}
