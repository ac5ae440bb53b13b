//! What a sandbox has beyond its root. A machine that was saved before its sandbox was known gets
//! it when it is restored.

use serde::{Deserialize, Serialize};

use crate::Format;

/// What the agent sets up in the sandbox's mount namespace once its root is there. The default
/// changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Filesystems to mount, in order. A missing target is made, as Docker makes it.
    pub mounts: Vec<Mount>,
    /// Maximum number of bytes in `/dev/shm`; None leaves it as it is (64 MiB after the boot).
    pub shm_bytes: Option<u64>,
    /// Maximum number of processes and threads of all commands together; None for no limit.
    pub max_processes: Option<u64>,
    /// Whether the root becomes read-only, after the mounts were made: the mounts of `/`, `/etc`'s
    /// files and `/sys`, as with Docker's `--read-only`.
    pub read_only: bool,
}

/// A filesystem and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// An absolute path, resolved inside the sandbox's root.
    pub target: String,
    /// What is mounted there.
    pub source: MountSource,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    /// An empty filesystem in the guest's memory.
    Tmpfs(Tmpfs),
    /// A directory of a disk.
    Disk(MountedDisk),
    /// A folder of the host, or one file of it.
    Share {
        /// The tag of its virtio-fs device.
        tag: String,
        /// The name of the share's only entry, if that file is mounted in place of the folder.
        file: Option<String>,
        /// Default owner of files with no recorded owner: the user that commands run as (`docker run --user`).
        user: String,
    },
    /// A device that every sandbox has, such as `/dev/null`, in place of a file.
    Device {
        /// Its path in the sandbox.
        path: String,
    },
}

/// A disk that is not the sandbox's own: a volume or an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedDisk {
    /// The disk's serial number.
    pub serial: String,
    /// Its filesystem.
    pub format: Format,
    /// The path in the filesystem of the directory that is mounted; empty for its root. Links are
    /// followed inside the filesystem.
    pub directory: String,
    /// Whether any of its mounts is written to; otherwise the disk is read-only.
    pub is_written: bool,
}

/// The options of a filesystem in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// Maximum number of bytes; None for half of the guest's memory.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Maximum number of files; None for the kernel's default.
    #[serde(default)]
    pub inodes: Option<u64>,
    /// The mode of its root, 0 to 0o7777. None for that of the directory that it covers, or 0o1777
    /// if that is made for it.
    #[serde(default)]
    pub mode: Option<u32>,
    /// The owner of its root.
    #[serde(default)]
    pub uid: u32,
    /// The group of its root.
    #[serde(default)]
    pub gid: u32,
    /// Whether its programs can be executed.
    #[serde(default)]
    pub exec: bool,
    /// Whether set-user-ID and set-group-ID bits and file capabilities count.
    #[serde(default)]
    pub suid: bool,
    /// Whether its device nodes can be opened.
    #[serde(default)]
    pub dev: bool,
}
