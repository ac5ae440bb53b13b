//! The mounts of a sandbox, as its guest gets them.

use micabox_disks::volume;
use micabox_error::{Error, random};
use micabox_ground::hex;
use micabox_spec::{Mount, MountSource, Setup};
use micabox_wire as wire;

use crate::share::{ONLY, Share};

/// Makes a mount of a new volume of the sandbox's own, which is removed with it.
///
/// # Errors
/// [`Error::System`] if the kernel gives no random bytes for its name.
pub fn anonymous_volume(target: impl Into<String>) -> Result<Mount, Error> {
    let name: [u8; 16] = random()?;
    Ok(Mount::own_volume(hex(name), target))
}

/// Returns what the agent sets up in a machine that was saved with `saved`, whose mounts are
/// the first ones here, or in one that boots.
pub fn for_guest(
    setup: &Setup,
    saved: Option<&Setup>,
    shares: &[Share],
    user: &str,
) -> wire::Setup {
    let nothing = Setup::default();
    let saved = saved.unwrap_or(&nothing);
    let mounts = setup.mounts.iter().enumerate().skip(saved.mounts.len());
    let mounts = mounts.filter_map(|(index, mount)| {
        let share = shares.iter().find(|share| share.mount == index);
        mount_for_guest(mount, setup, share, user)
    });
    wire::Setup {
        mounts: mounts.collect(),
        shm_bytes: setup.shm_size.filter(|_| setup.shm_size != saved.shm_size),
        max_processes: setup
            .pids_limit
            .filter(|_| setup.pids_limit != saved.pids_limit),
        read_only: setup.read_only && !saved.read_only,
    }
}

/// Converts the mount for the guest. None for a share that was not opened.
fn mount_for_guest(
    mount: &Mount,
    setup: &Setup,
    share: Option<&Share>,
    user: &str,
) -> Option<wire::Mount> {
    Some(wire::Mount {
        target: mount.target.clone(),
        source: match &mount.source {
            MountSource::Tmpfs(options) => wire::MountSource::Tmpfs(options.clone()),
            MountSource::Volume(source) => {
                let volumes = setup.volumes();
                let mut volumes = volumes.iter();
                let used = volumes.find(|volume| volume.source.name == source.name);
                wire::MountSource::Disk(wire::MountedDisk {
                    serial: used.map(|used| used.serial.clone()).unwrap_or_default(),
                    format: wire::Format::Ext4,
                    directory: volume::DATA.to_owned(),
                    is_written: used.is_some_and(|used| !used.read_only),
                })
            }
            MountSource::Image(source) => {
                let images = setup.images();
                let mut images = images.into_iter();
                let used = images.find(|(image, _)| image.digest == source.image.digest);
                wire::MountSource::Disk(wire::MountedDisk {
                    serial: used.map(|(_, serial)| serial).unwrap_or_default(),
                    format: wire::Format::Erofs,
                    directory: source.subpath.clone(),
                    is_written: false,
                })
            }
            MountSource::Bind(bind) => match bind.device() {
                Some(path) => wire::MountSource::Device {
                    path: path.to_owned(),
                },
                None => wire::MountSource::Share {
                    tag: share?.tag(),
                    file: share?.is_file.then(|| ONLY.to_owned()),
                    user: user.to_owned(),
                },
            },
        },
        read_only: mount.read_only,
    })
}
