//! The root filesystem: how its bytes reach the guest, what is below its changes, and where these go.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Default size of a disk in bytes. The host allocates space only as it fills.
pub const DEFAULT_DISK_SIZE: u64 = 8 << 30;

/// How an image's bytes reach the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Whichever boots faster.
    #[default]
    Auto,
    /// Persistent memory, mapped from the host's page cache without a copy.
    Pmem,
    /// A block device.
    Blk,
}

/// The root filesystem's lower side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// One filesystem for all layers.
    #[default]
    Merged,
    /// One filesystem a layer, stacked by overlayfs.
    Stacked,
}

/// Where a sandbox's changes go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Upper {
    /// Into its memory, lost when it ends.
    #[default]
    Tmpfs,
    /// Onto a disk of its own, kept until the sandbox is removed. It can be larger than memory, and
    /// is used again by the next start.
    Disk {
        /// The disk's size in bytes.
        size: u64,
    },
    /// Into a folder of the host, in overlayfs's terms: the layer is its directory `upper`. It is made
    /// if its parent exists, may have nothing else in it, and is never removed. One sandbox uses it at
    /// a time, and the next start of the sandbox uses it again.
    Folder {
        /// The absolute path.
        path: String,
    },
    /// Into the root disk itself.
    InPlace,
}

impl Upper {
    /// Returns whether the changes are kept when the sandbox ends.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !matches!(self, Self::Tmpfs)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Pmem => "pmem",
            Self::Blk => "blk",
        })
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Merged => "merged",
            Self::Stacked => "stacked",
        })
    }
}
