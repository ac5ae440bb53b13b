//! A sandbox's root, the changes to it before the start, and its mounts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

#[cfg(feature = "clap")]
use super::exclusions;
use super::late::{Late, in_time};
use super::path;
use super::place::{MountOption, UpperOption, VolumeOption, bound};
use super::row::{Heading, Kind, Opt, Row, Whose};
use super::taken::{Taken, nothing, shown};
use crate::words::{self, MountWord, OrDefault, Size, TmpfsWord};
use crate::{Spec, Upper};

/// What a sandbox's root is, what is changed in it, and what is mounted over it.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, rename_all = "kebab-case")]
pub struct FileOptions {
    /// Start from a copy of a snapshot's disk, on its image, without an IMAGE. A snapshot with
    /// memory continues where it was: without a COMMAND with the one that runs in it, and with
    /// the network that it had unless flags change that. One in a registry, by its NAME:TAG, is
    /// pulled if it is not here
    #[cfg_attr(feature = "clap", arg(long, value_name = "SNAPSHOT", conflicts_with_all = exclusions::of_snapshots()))]
    pub from: Option<String>,

    /// Start from the ext4 or EROFS filesystem in a file, without an IMAGE; the default COMMAND
    /// is /bin/sh. The file is not changed; with :rw, changes go into it. It may be a disk with
    /// partitions, of which partition=N is taken, or the only one that can be a root; and a qcow2
    /// or VMDK image. With --from, the root disk of an imported snapshot
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "FILE[,partition=N][:rw]",
        conflicts_with_all = exclusions::OF_ROOT_DISKS
    ))]
    #[serde(deserialize_with = "words::optional")]
    pub root_disk: Option<OsString>,

    /// Remove a path from the image's files before the start
    #[cfg_attr(feature = "clap", arg(long, value_name = "PATH"))]
    #[serde(deserialize_with = "words::all")]
    pub remove: Vec<OsString>,

    /// Make a directory before the start
    #[cfg_attr(feature = "clap", arg(long, value_name = "PATH"))]
    #[serde(deserialize_with = "words::all")]
    pub mkdir: Vec<OsString>,

    /// Unpack an uncompressed archive at the root before the start
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    #[serde(deserialize_with = "path::some")]
    pub patch_tar: Vec<PathBuf>,

    /// Copy a file of the host to that path before the start
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE:PATH"))]
    #[serde(deserialize_with = "words::all")]
    pub patch: Vec<Pair>,

    /// Make a symbolic link before the start
    #[cfg_attr(feature = "clap", arg(long, value_name = "TARGET:PATH"))]
    #[serde(deserialize_with = "words::all")]
    pub symlink: Vec<Pair>,

    /// Mount a folder or file of this machine, or a volume: a name without a slash, or none for one that is
    /// removed with the sandbox. What is missing is made. What is made in a folder belongs to you. With
    /// `cached`, changes made outside may be seen a second late inside: faster for folders that other hosts
    /// change too (NFS)
    #[cfg_attr(
        feature = "clap",
        arg(short, long, value_name = "[HOST|NAME:]PATH[:ro][,cached]")
    )]
    #[serde(deserialize_with = "words::all")]
    pub volume: Vec<VolumeOption>,

    /// Mount a filesystem [type=bind,source=HOST,target=PATH[,readonly][,consistency=cached]
    /// [,bind-recursive=disabled], type=volume[,source=NAME],target=PATH[,readonly][,volume-nocopy=true],
    /// type=image,source=IMAGE,target=PATH[,image-subpath=PATH] or
    /// type=tmpfs,target=PATH[,tmpfs-size=SIZE][,tmpfs-mode=MODE][,readonly]]
    #[cfg_attr(feature = "clap", arg(long, value_name = "MOUNT"))]
    #[serde(deserialize_with = "words::all")]
    pub mount: Vec<MountOption>,

    /// Mount an empty filesystem in memory; options are those of Docker [size=64m,mode=1777,exec]
    #[cfg_attr(feature = "clap", arg(long, value_name = "PATH[:OPTIONS]"))]
    pub tmpfs: Vec<TmpfsWord>,

    /// Make the root read-only; /dev, /proc and mounts stay writable. Root inside can undo that,
    /// unless --cap-drop SYS_ADMIN takes the capability away
    #[cfg_attr(feature = "clap", arg(long))]
    pub read_only: bool,

    /// Size of /dev/shm [default: 64m]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SIZE"))]
    pub shm_size: Option<OrDefault<Size>>,

    /// Where changes go: memory, gone with the sandbox; a disk of that size [8g], kept until
    /// `mica rm`; or a folder of the host, kept after that too [default: tmpfs]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "tmpfs|disk[:SIZE]|folder:DIR")
    )]
    #[serde(deserialize_with = "words::optional")]
    pub upper: Option<UpperOption>,
}

/// `FIRST:/PATH`: a path on the host or a link's target, and an absolute path in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The path on the host, or the target.
    pub first: OsString,
    /// The path in the sandbox.
    pub path: OsString,
}

impl FromStr for Pair {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(":/") {
            Some((first, path)) if !first.is_empty() => Ok(Self {
                first: first.into(),
                path: format!("/{path}").into(),
            }),
            _ => Err("expected two names with a colon between, the second one absolute"),
        }
    }
}

impl FileOptions {
    /// Applies them.
    pub(super) fn apply(&self, spec: &mut Spec) {
        let Self {
            remove: _, // a start's changes before it, which are no settings
            mkdir: _,
            patch_tar: _,
            patch: _,
            symlink: _,
            volume: _, // in the order of their targets, once images are found
            mount: _,
            tmpfs: _,
            read_only,
            shm_size,
            upper,
            from: _, // what the sandbox is made from
            root_disk: _,
        } = self;
        spec.setup.read_only |= read_only;
        if let Some(OrDefault(Some(Size(size)))) = shm_size {
            spec.setup.shm_size = Some(*size);
        }
        if let Some(UpperOption(upper)) = upper {
            spec.upper = upper.clone();
        }
    }

    /// Returns where changes go, if it is set.
    #[must_use]
    pub fn upper(&self) -> Option<&Upper> {
        self.upper.as_ref().map(|UpperOption(upper)| upper)
    }

    /// Returns the file of the root disk, whether changes go into it, and its partition.
    #[must_use]
    pub fn root_disk(&self) -> Option<(PathBuf, bool, Option<u32>)> {
        let text = self.root_disk.as_deref()?.as_bytes();
        let (path, in_place) = match (text.strip_suffix(b":rw"), text.strip_suffix(b":ro")) {
            (Some(path), _) => (path, true),
            (None, Some(path)) => (path, false),
            (None, None) => (text, false),
        };
        let (path, partition) = with_partition(path);
        Some((OsStr::from_bytes(path).into(), in_place, partition))
    }
}

/// Splits `FILE,partition=N`. A file whose name ends otherwise is one.
fn with_partition(text: &[u8]) -> (&[u8], Option<u32>) {
    const NAME: &[u8] = b",partition=";
    let at = text.windows(NAME.len()).rposition(|piece| piece == NAME);
    let split = at.and_then(|at| {
        let digits = text.get(at + NAME.len()..)?;
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some((text.get(..at)?, number))
    });
    split.map_or((text, None), |(path, number)| (path, Some(number)))
}

/// Their rows.
pub(super) const OPTIONS: &[Row<FileOptions>] = &[
    Row {
        option: Opt {
            name: "remove",
            kind: Kind::List,
            help: "Paths that are removed from the root before the start. Default: none.",
            listed: Some(200),
            below: Some((Heading::Files, 80)),
            whose: Whose::Machine,
        },
        late: |files| Late::patch(!files.remove.is_empty()),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "mkdir",
            kind: Kind::List,
            help: "Directories that are made in the root before the start. Default: none.",
            listed: Some(210),
            below: Some((Heading::Files, 90)),
            whose: Whose::Machine,
        },
        late: |files| Late::patch(!files.mkdir.is_empty()),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "patch-tar",
            kind: Kind::List,
            help: "Uncompressed archives that are unpacked at the root before the start. Default: none.",
            listed: Some(230),
            below: Some((Heading::Files, 110)),
            whose: Whose::Machine,
        },
        late: |files| Late::patch(!files.patch_tar.is_empty()),
        takes: |files| Taken::first(&files.patch_tar),
    },
    Row {
        option: Opt {
            name: "patch",
            kind: Kind::List,
            help: "Files of this machine that are copied into the root before the start: `FILE:PATH`. Default: none.",
            listed: Some(220),
            below: Some((Heading::Files, 100)),
            whose: Whose::Machine,
        },
        late: |files| Late::patch(!files.patch.is_empty()),
        takes: |files| Taken::path(files.patch.first().map(|pair| shown(pair.first.as_ref()))),
    },
    Row {
        option: Opt {
            name: "symlink",
            kind: Kind::List,
            help: "Symbolic links that are made in the root before the start: `TARGET:PATH`. Default: none.",
            listed: Some(240),
            below: Some((Heading::Files, 120)),
            whose: Whose::Machine,
        },
        late: |files| Late::patch(!files.symlink.is_empty()),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "volume",
            kind: Kind::List,
            help: "Folders, files, volumes: `HOST:PATH`, `NAME:PATH`, `PATH` (removed with it); then `:ro`, `:cached`. Default: none.",
            listed: Some(160),
            below: Some((Heading::Files, 10)),
            whose: Whose::Machine,
        },
        late: in_time,
        takes: |files| {
            Taken::path(
                files
                    .volume
                    .iter()
                    .find_map(|VolumeOption(mount)| bound(mount)),
            )
        },
    },
    Row {
        option: Opt {
            name: "mount",
            kind: Kind::List,
            help: "Mounts as `docker run --mount` has them: `type=image,source=tools,target=/opt`. Default: none.",
            listed: Some(170),
            below: Some((Heading::Files, 20)),
            whose: Whose::Machine,
        },
        late: in_time,
        takes: |files| {
            Taken::path(files.mount.iter().find_map(|MountOption(word)| match word {
                MountWord::Mount(mount) => bound(mount),
                MountWord::Image { .. } => None,
            }))
        },
    },
    Row {
        option: Opt {
            name: "tmpfs",
            kind: Kind::List,
            help: "Filesystems in memory: `PATH` or `PATH:size=64m,mode=1777`. Default: none.",
            listed: Some(180),
            below: Some((Heading::Files, 30)),
            whose: Whose::Machine,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "read-only",
            kind: Kind::Flag,
            help: "Whether the root is read-only. Default: {false}.",
            listed: Some(190),
            below: Some((Heading::Files, 50)),
            whose: Whose::Machine,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "shm-size",
            kind: Kind::Text,
            help: "Size of `/dev/shm`, in bytes or with `k`, `m` or `g`. Default: `64m`.",
            listed: Some(420),
            below: Some((Heading::Files, 40)),
            whose: Whose::Machine,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "upper",
            kind: Kind::Text,
            help: "Where changes go: `tmpfs`, `disk`, `disk:20g` or `folder:DIR`. Default: `tmpfs`, gone with the sandbox.",
            listed: Some(130),
            below: Some((Heading::Files, 60)),
            whose: Whose::Image,
        },
        late: in_time,
        takes: |files| match files.upper() {
            Some(Upper::Folder { path }) => Taken::Path(path.clone()),
            _ => Taken::Nothing,
        },
    },
    Row {
        option: Opt {
            name: "from",
            kind: Kind::Text,
            help: "A snapshot in place of an image: its name, or `NAME:TAG` of one in a registry. Default: none.",
            listed: Some(150),
            below: Some((Heading::Sandbox, 90)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "root-disk",
            kind: Kind::Text,
            help: "File in place of an image: ext4, EROFS, disk (raw, qcow2, VMDK; `,partition=N`); `:rw` changes it. Default: none.",
            listed: Some(140),
            below: Some((Heading::Files, 70)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: |files| Taken::path(files.root_disk().map(|(path, ..)| shown(&path))),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_disk_may_name_its_partition() {
        for (text, path, number) in [
            ("disk", "disk", None),
            ("disk,partition=1", "disk", Some(1)),
            ("a,partition=2,partition=15", "a,partition=2", Some(15)),
            ("disk,partition=", "disk,partition=", None),
            ("disk,partition=one", "disk,partition=one", None),
        ] {
            let split = with_partition(text.as_bytes());
            assert_eq!(split, (path.as_bytes(), number), "{text}");
        }
    }
}
