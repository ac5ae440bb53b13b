//! What a record calls the base of a sandbox.

use std::fmt;

use micabox_parsers::RootDisk;
use micabox_spec::ImageName;
use serde::{Deserialize, Serialize};

/// What a sandbox was made from, as its record and its snapshots say. In JSON it is two fields:
/// `image`, with the reference and the digest of an image or with the path of a root disk and no
/// digest; and `root_disk`, if it is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub enum BaseName {
    /// An image in the store.
    Image(ImageName),
    /// One of the user's files, at its path.
    Disk(RootDisk),
    /// A root disk of the user who exported a snapshot. Its path is of another machine.
    DiskElsewhere {
        /// The path there, to be shown and not to be opened.
        was: Option<String>,
        /// The disk, with an empty path.
        disk: RootDisk,
    },
}

impl BaseName {
    /// Returns the root disk, if the base is one.
    pub fn disk(&self) -> Option<&RootDisk> {
        match self {
            Self::Image(_) => None,
            Self::Disk(disk) | Self::DiskElsewhere { disk, .. } => Some(disk),
        }
    }

    /// Returns what the base is, whatever it is called: the changes of one don't fit another.
    pub fn identity(&self) -> String {
        match self {
            Self::Image(image) => image.digest.clone(),
            Self::Disk(disk) | Self::DiskElsewhere { disk, .. } => {
                let uuid = u128::from_be_bytes(disk.uuid);
                format!("root disk {uuid:032x} of {} bytes", disk.size)
            }
        }
    }

    /// Leaves out what it was called: a path, or a name in a registry of its own.
    pub fn forget_names(&mut self) {
        match self {
            Self::Image(image) => image.reference = None,
            Self::Disk(disk) => disk.path.clear(),
            Self::DiskElsewhere { was, .. } => *was = None,
        }
    }

    /// Returns the name for another machine or user, whose files it must not name.
    pub fn elsewhere(self) -> Self {
        let was = self.to_string();
        match self {
            Self::Disk(mut disk) => {
                disk.path.clear();
                let was = Some(was);
                Self::DiskElsewhere { was, disk }
            }
            name => name,
        }
    }
}

/// Shows an image's reference, or its digest if it was requested by that; or a root disk's path.
impl fmt::Display for BaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(image) => f.write_str(image.reference.as_ref().unwrap_or(&image.digest)),
            Self::Disk(disk) => disk.path.display().fmt(f),
            Self::DiskElsewhere { was, .. } => f.write_str(was.as_deref().unwrap_or_default()),
        }
    }
}

/// A [`BaseName`] in JSON.
#[derive(Serialize, Deserialize)]
struct Stored {
    image: ImageName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root_disk: Option<RootDisk>,
}

impl From<Stored> for BaseName {
    fn from(Stored { image, root_disk }: Stored) -> Self {
        match root_disk {
            None => Self::Image(image),
            Some(disk) if disk.path.as_os_str().is_empty() => Self::DiskElsewhere {
                was: image.reference,
                disk,
            },
            Some(disk) => Self::Disk(disk),
        }
    }
}

impl From<BaseName> for Stored {
    fn from(name: BaseName) -> Self {
        let image = |reference| ImageName {
            reference,
            digest: String::new(),
            trim: <_>::default(),
        };
        match name {
            BaseName::Image(image) => Self {
                image,
                root_disk: None,
            },
            BaseName::Disk(disk) => Self {
                image: image(Some(disk.path.display().to_string())),
                root_disk: Some(disk),
            },
            BaseName::DiskElsewhere { was, disk } => Self {
                image: image(was),
                root_disk: Some(disk),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn disk(path: &str) -> Value {
        json!({
            "path": path, "format": "ext4", "in_place": false, "size": 4096,
            "uuid": vec![7; 16], "unmapped": null, "modified": [1, 2],
        })
    }

    #[test]
    fn each_kind_is_written_as_it_is_read() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let image =
            |reference: Value, digest: &str| json!({"reference": reference, "digest": digest});
        for (stored, shown, is_disk) in [
            (
                json!({"image": image("debian:12".into(), &digest)}),
                "debian:12",
                false,
            ),
            (
                json!({"image": image(Value::Null, &digest)}),
                &*digest,
                false,
            ),
            (
                json!({"image": {"reference": "debian:12", "digest": digest, "trim": ["/a"]}}),
                "debian:12",
                false,
            ),
            (
                json!({"image": image("/d/root".into(), ""), "root_disk": disk("/d/root")}),
                "/d/root",
                true,
            ),
            (
                json!({"image": image("/theirs".into(), ""), "root_disk": disk("")}),
                "/theirs",
                true,
            ),
        ] {
            let name: BaseName = serde_json::from_value(stored.clone()).unwrap();
            assert_eq!(name.to_string(), shown);
            assert_eq!(name.disk().is_some(), is_disk);
            assert_eq!(serde_json::to_value(&name).unwrap(), stored);
        }
    }

    #[test]
    fn a_root_disk_of_elsewhere_has_no_path_and_the_name_it_had() {
        let stored = json!({"image": {"reference": "/d", "digest": ""}, "root_disk": disk("/d")});
        let name: BaseName = serde_json::from_value(stored).unwrap();
        let elsewhere = name.elsewhere();
        assert_eq!(elsewhere.to_string(), "/d");
        assert_eq!(elsewhere.disk().unwrap().path.as_os_str(), "");
        assert_eq!(elsewhere.clone().elsewhere(), elsewhere);
    }
}
