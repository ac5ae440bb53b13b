//! Options that exclude each other.

use super::error::OptionError;
use super::list::all;
use super::row::Whose;

/// What is of images only.
pub const OF_ROOT_DISKS: [&str; 6] = ["pull", "lazy", "platform", "root", "verity", "trim"];

/// Returns what a snapshot has already. Its memory may come later, as an image does.
#[must_use]
pub fn of_snapshots() -> Vec<&'static str> {
    let of_images = all().filter(|option| option.whose == Whose::Image && option.name != "lazy");
    of_images.map(|option| option.name).collect()
}

/// Fails if options of a request that are given exclude each other, or an image, and if there is nothing to make a sandbox
/// from.
///
/// # Errors
/// [`OptionError::Invalid`].
pub fn check(given: &[String], has_image: bool) -> Result<(), OptionError> {
    let is_given = |name: &&str| given.iter().any(|given| given == name);
    let excluded = [
        ("from", of_snapshots()),
        ("root-disk", OF_ROOT_DISKS.to_vec()),
    ];
    for (name, others) in excluded.into_iter().filter(|(name, _)| is_given(name)) {
        let others: Vec<_> = others.iter().copied().filter(is_given).collect();
        exclude(name, &others)?;
    }
    let bases = ["from", "root-disk"].into_iter().filter(is_given);
    let bases: Vec<_> = bases.collect();
    match (has_image, bases.as_slice()) {
        (true, bases) => exclude("image", bases),
        (false, []) => Err(OptionError::Invalid(
            "the following required arguments were not provided: `image`".to_owned(),
        )),
        (false, _) => Ok(()),
    }
}

fn exclude(name: &str, others: &[&str]) -> Result<(), OptionError> {
    let listed: Vec<_> = others.iter().map(|name| format!("`{name}`")).collect();
    let listed = listed.join(", ");
    match others {
        [] => Ok(()),
        [_] => Err(OptionError::Invalid(format!(
            "the argument `{name}` cannot be used with {listed}"
        ))),
        _ => Err(OptionError::Invalid(format!(
            "the argument `{name}` cannot be used with: {listed}"
        ))),
    }
}
