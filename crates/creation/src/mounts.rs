//! The mounts of a sandbox, from `-v`, `--mount` and `--tmpfs`.

use std::io;

use micabox::words::{MountWord, TmpfsWord};
use micabox::{BindSource, Image, ImageName, Mount, MountSource};
use micabox_spec::options::{FileOptions, MountOption, VolumeOption};

use micabox_program::failure::Failure;
use micabox_program::umask;

/// Returns the mounts in the order in which they are made: those with the shorter targets
/// first, as in Docker, so that none covers another. `image` finds an image.
pub fn mounts(
    files: &FileOptions,
    image: impl Fn(&str) -> Result<Image, Failure>,
) -> Result<Vec<Mount>, Failure> {
    let tmpfs = files.tmpfs.iter().map(|TmpfsWord(mount)| mount.clone());
    let mut mounts: Vec<Mount> = tmpfs.collect();
    for VolumeOption(mount) in &files.volume {
        make_missing(mount)?;
        mounts.push(mount.clone());
    }
    for MountOption(word) in &files.mount {
        match word {
            MountWord::Mount(mount) => mounts.push(mount.clone()),
            MountWord::Image {
                target,
                reference,
                subpath,
            } => {
                let image = image(reference)?;
                let name = ImageName::new(image.reference.as_ref(), &image.manifest_digest);
                let mount = Mount::image(name, target);
                mounts.push(mount.subpath(subpath));
            }
        }
    }
    let depth = |target: &str| target.split('/').filter(|part| !part.is_empty()).count();
    mounts.sort_by_key(|mount| depth(&mount.target));
    Ok(mounts)
}

/// Makes the folder of a `-v`, as Docker does.
fn make_missing(mount: &Mount) -> Result<(), Failure> {
    let MountSource::Bind(BindSource { source, .. }) = &mount.source else {
        return Ok(());
    };
    match std::fs::symlink_metadata(source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => umask::with_users(|| {
            std::fs::create_dir_all(source)
        })
        .map_err(|error| Failure::new(format!("cannot make the folder `{source}`: {error}"))),
        _ => Ok(()),
    }
}
