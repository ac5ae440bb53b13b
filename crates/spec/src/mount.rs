//! What a sandbox has beyond its image's root.

use std::path::{Component, Path};

use micabox_wire::Tmpfs;
use serde::{Deserialize, Serialize};

use crate::ImageName;

/// Maximum number of bytes of a path, as in Linux.
const MAX_PATH: usize = 4095;

/// The mounts of a sandbox beyond its root, and what limits its files. They are a part of its
/// record: another start has them again, and a copy has what the original has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Setup {
    /// Filesystems over directories of the root, in the order in which they are mounted.
    pub mounts: Vec<Mount>,
    /// Whether the root is read-only.
    pub read_only: bool,
    /// Maximum number of bytes in `/dev/shm`. Default: 64 MiB.
    pub shm_size: Option<u64>,
    /// Maximum number of processes and threads of all commands together. Default: none.
    pub pids_limit: Option<u64>,
}

/// A filesystem and where it is mounted in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// An absolute path in the sandbox. It is resolved inside the sandbox's root; what is missing is
    /// made.
    pub target: String,
    /// What is mounted.
    #[serde(flatten)]
    pub source: MountSource,
    /// Whether it is mounted read-only.
    #[serde(default)]
    pub read_only: bool,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MountSource {
    /// An empty filesystem in the guest's memory.
    Tmpfs(Tmpfs),
    /// A volume, which is made if there is none.
    Volume(VolumeSource),
    /// The files of an image, always read-only.
    Image(ImageSource),
    /// A folder of the host, or a file. What is made in it belongs to the user who runs the sandbox.
    Bind(BindSource),
}

/// The folder or file of the host of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindSource {
    /// The absolute path on the host, which must exist. Links in it are followed at each start.
    pub source: String,
    /// Whether what the host changes may be seen a second late, for the sake of speed. Otherwise a
    /// path shows what it leads to at each use.
    #[serde(default)]
    pub cached: bool,
    /// Whether what is mounted below the folder on the host is left out. Otherwise it is there as it is at
    /// the start; what is mounted later is seen on neither side.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
}

/// Devices that every sandbox has itself, and that stand for the host's.
const DEVICES: [&str; 6] = [
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];

/// A mount that can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot mount anything at `{target}`: {problem}")]
pub struct MountError {
    /// Where it was to be.
    pub target: String,
    /// Why it can't be.
    pub problem: &'static str,
}

impl BindSource {
    /// Returns the path of the sandbox's own device that is mounted in place of the host's, if the source
    /// is one.
    #[must_use]
    pub fn device(&self) -> Option<&'static str> {
        DEVICES.into_iter().find(|device| self.source == *device)
    }
}

/// The image of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSource {
    /// The image.
    pub image: ImageName,
    /// The path of the directory in the image that is mounted; empty for its root.
    #[serde(default)]
    pub subpath: String,
}

/// The volume of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSource {
    /// Its name.
    pub name: String,
    /// Whether a new volume stays empty. Otherwise it gets what the image has at the target.
    #[serde(default)]
    pub no_copy: bool,
    /// Whether it is the sandbox's own, and removed with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
}

/// A volume that a sandbox uses, with all of its mounts.
#[derive(Clone, Debug)]
pub struct UsedVolume<'a> {
    /// The volume.
    pub source: &'a VolumeSource,
    /// The first mount's target.
    pub target: &'a str,
    /// The disk's serial number, at most 20 bytes.
    pub serial: String,
    /// Whether none of its mounts is written to.
    pub read_only: bool,
}

impl Setup {
    /// Returns the volumes, each once however often it is mounted.
    #[must_use]
    pub fn volumes(&self) -> Vec<UsedVolume<'_>> {
        let mut volumes: Vec<UsedVolume<'_>> = Vec::new();
        for mount in &self.mounts {
            let MountSource::Volume(source) = &mount.source else {
                continue;
            };
            let mut known = volumes.iter_mut();
            match known.find(|volume| volume.source.name == source.name) {
                Some(volume) => volume.read_only &= mount.read_only,
                None => volumes.push(UsedVolume {
                    source,
                    target: &mount.target,
                    serial: format!("volume-{}", volumes.len()),
                    read_only: mount.read_only,
                }),
            }
        }
        volumes
    }

    /// Returns the images that are mounted, each once, with their disks' serial numbers.
    #[must_use]
    pub fn images(&self) -> Vec<(&ImageName, String)> {
        let mut images: Vec<(&ImageName, String)> = Vec::new();
        for mount in &self.mounts {
            if let MountSource::Image(ImageSource { image, .. }) = &mount.source
                && images.iter().all(|(known, _)| known.digest != image.digest)
            {
                images.push((image, format!("mounted-{}", images.len())));
            }
        }
        images
    }

    /// Returns how many folders and files of the host are mounted.
    #[must_use]
    pub fn shares(&self) -> usize {
        self.binds().count()
    }

    /// Returns the mounts of the host's folders and files, with their places among all mounts: not those of devices, which
    /// every sandbox has itself.
    pub fn binds(&self) -> impl Iterator<Item = (usize, &BindSource, bool)> {
        let mounts = self.mounts.iter().enumerate();
        mounts.filter_map(|(place, mount)| match &mount.source {
            MountSource::Bind(source) if source.device().is_none() => {
                Some((place, source, mount.read_only))
            }
            _ => None,
        })
    }

    /// Returns whether any mount needs a disk, which no template has.
    #[must_use]
    pub fn has_disks(&self) -> bool {
        let mut mounts = self.mounts.iter();
        mounts.any(|mount| matches!(mount.source, MountSource::Volume(_) | MountSource::Image(_)))
    }

    /// Checks the targets of the mounts.
    ///
    /// # Errors
    /// [`MountError`] about the first that is wrong.
    pub fn check(&self) -> Result<(), MountError> {
        let mut targets: Vec<&Path> = Vec::new();
        for mount in &self.mounts {
            let path = Path::new(&mount.target);
            let climbs = path.components().any(|part| part == Component::ParentDir);
            let bad_source = match &mount.source {
                MountSource::Bind(BindSource { source, .. }) => {
                    !Path::new(source).is_absolute() || source.contains('\0')
                }
                _ => false,
            };
            let problem = match () {
                () if bad_source => "the path on the host is not absolute",
                () if !path.is_absolute() => "the path is not absolute",
                () if mount.target.contains('\0') => "the path has a NUL byte",
                () if mount.target.len() > MAX_PATH => "the path is too long",
                () if climbs => "the path has `..` in it",
                () if path == Path::new("/") => "the root can't be mounted over",
                () if path.starts_with("/proc") => "the kernel's own files are there",
                () if targets.contains(&path) => "something else is mounted there as well",
                () => {
                    targets.push(path);
                    continue;
                }
            };
            return Err(MountError {
                target: mount.target.clone(),
                problem,
            });
        }
        Ok(())
    }
}

impl Mount {
    /// Makes a mount of an empty filesystem in the guest's memory.
    #[must_use]
    pub fn tmpfs(target: impl Into<String>, options: Tmpfs) -> Self {
        Self {
            target: target.into(),
            source: MountSource::Tmpfs(options),
            read_only: false,
        }
    }

    /// Makes a mount of a volume.
    #[must_use]
    pub fn volume(name: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            source: MountSource::Volume(VolumeSource {
                name: name.into(),
                no_copy: false,
                anonymous: false,
            }),
            read_only: false,
        }
    }

    /// Makes a mount of a volume of the sandbox's own, which is removed with it. No other volume has its name.
    #[must_use]
    pub fn own_volume(name: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            source: MountSource::Volume(VolumeSource {
                name: name.into(),
                no_copy: false,
                anonymous: true,
            }),
            read_only: false,
        }
    }

    /// Mounts a directory of an image, and not its root. Other mounts stay as they are.
    #[must_use]
    pub fn subpath(mut self, path: &str) -> Self {
        if let MountSource::Image(source) = &mut self.source {
            path.clone_into(&mut source.subpath);
        }
        self
    }

    /// Makes a mount of a folder or file of the host.
    #[must_use]
    pub fn bind(source: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            source: MountSource::Bind(BindSource {
                source: source.into(),
                cached: false,
                alone: false,
            }),
            read_only: false,
        }
    }

    /// Lets names and attributes in a folder of the host be up to a second old. Other mounts stay as
    /// they are.
    #[must_use]
    pub fn cached(mut self) -> Self {
        if let MountSource::Bind(source) = &mut self.source {
            source.cached = true;
        }
        self
    }

    /// Leaves out what is mounted below a folder of the host. Other mounts stay as they are.
    #[must_use]
    pub fn alone(mut self) -> Self {
        if let MountSource::Bind(source) = &mut self.source {
            source.alone = true;
        }
        self
    }

    /// Makes the mount read-only. A folder of the host can then not be changed from inside by any
    /// means.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Makes a mount of the files of an image, read-only.
    #[must_use]
    pub fn image(image: ImageName, target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            source: MountSource::Image(ImageSource {
                image,
                subpath: String::new(),
            }),
            read_only: true,
        }
    }
}
