//! What a sandbox has beyond its image's root.

use std::path::{Component, Path};

use micabox_wire as wire;
use micabox_wire::Tmpfs;
use serde::{Deserialize, Serialize};

use crate::builder::random;
use crate::share::{ONLY, Share};
use crate::{Digest, Error, Image, ImageName, Trim, volume};

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
    /// A [`Volume`](crate::Volume), which is made if there is none.
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

impl BindSource {
    /// Returns the path of the sandbox's own device that is mounted in place of the host's, if the source
    /// is one.
    pub(crate) fn device(&self) -> Option<&'static str> {
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
pub(crate) struct UsedVolume<'a> {
    pub(crate) source: &'a VolumeSource,
    /// The first mount's target.
    pub(crate) target: &'a str,
    /// The disk's serial number, at most 20 bytes.
    pub(crate) serial: String,
    pub(crate) read_only: bool,
}

impl Setup {
    /// Returns the volumes, each once however often it is mounted.
    pub(crate) fn volumes(&self) -> Vec<UsedVolume<'_>> {
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
    pub(crate) fn images(&self) -> Vec<(&ImageName, String)> {
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

    /// Returns the digests of the manifests of the images that are mounted.
    pub(crate) fn image_digests(&self) -> Result<Vec<Digest>, Error> {
        let images = self.images().into_iter();
        images.map(|(image, _)| image.parse_digest()).collect()
    }

    /// Returns whether any mount needs a disk, which no template has.
    pub(crate) fn has_disks(&self) -> bool {
        let mut mounts = self.mounts.iter();
        mounts.any(|mount| matches!(mount.source, MountSource::Volume(_) | MountSource::Image(_)))
    }

    /// Checks the targets of the mounts.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let mut targets: Vec<&Path> = Vec::new();
        for mount in &self.mounts {
            let bad = |problem| Error::BadMount {
                target: mount.target.clone(),
                problem,
            };
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
            return Err(bad(problem));
        }
        Ok(())
    }

    /// Returns what the agent sets up in a machine that was saved with `saved`, whose mounts are
    /// the first ones here, or in one that boots.
    pub(crate) fn beyond(&self, saved: Option<&Self>, shares: &[Share], user: &str) -> wire::Setup {
        let nothing = Self::default();
        let saved = saved.unwrap_or(&nothing);
        let mounts = self.mounts.iter().enumerate().skip(saved.mounts.len());
        let mounts = mounts.filter_map(|(index, mount)| {
            let share = shares.iter().find(|share| share.mount == index);
            mount.for_guest(self, share, user)
        });
        wire::Setup {
            mounts: mounts.collect(),
            shm_bytes: self.shm_size.filter(|_| self.shm_size != saved.shm_size),
            max_processes: self
                .pids_limit
                .filter(|_| self.pids_limit != saved.pids_limit),
            read_only: self.read_only && !saved.read_only,
        }
    }
}

impl Mount {
    /// Makes a mount of an empty filesystem in the guest's memory.
    pub fn tmpfs(target: impl Into<String>, options: Tmpfs) -> Self {
        Self {
            target: target.into(),
            source: MountSource::Tmpfs(options),
            read_only: false,
        }
    }

    /// Makes a mount of a volume.
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

    /// Makes a mount of a new volume of the sandbox's own, which is removed with it.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel gives no random bytes for its name.
    pub fn anonymous_volume(target: impl Into<String>) -> Result<Self, Error> {
        let name: [u8; 16] = random()?;
        let digits = name.iter().map(|byte| format!("{byte:02x}"));
        let mut mount = Self::volume(digits.collect::<String>(), target);
        if let MountSource::Volume(source) = &mut mount.source {
            source.anonymous = true;
        }
        Ok(mount)
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
    pub fn image(image: &Image, target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            source: MountSource::Image(ImageSource {
                image: ImageName {
                    reference: image.reference.as_ref().map(ToString::to_string),
                    digest: image.manifest_digest.to_string(),
                    trim: Trim::default(),
                },
                subpath: String::new(),
            }),
            read_only: true,
        }
    }

    /// Converts the mount for the guest. None for a share that was not opened.
    fn for_guest(&self, setup: &Setup, share: Option<&Share>, user: &str) -> Option<wire::Mount> {
        Some(wire::Mount {
            target: self.target.clone(),
            source: match &self.source {
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
            read_only: self.read_only,
        })
    }
}
