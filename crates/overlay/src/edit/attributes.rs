//! Attributes of new files.

use micabox_ext4::{Owner, Timestamp};

/// Attributes of a new file, directory, link or device.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Permissions, except of symbolic links, and owner.
    pub owner: Owner,
    /// Modification time; `None` means now.
    pub mtime: Option<Timestamp>,
    /// Names and values of extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Attributes of a new file owned by root.
    pub fn root(permissions: u16) -> Self {
        Self {
            owner: Owner::root(permissions),
            mtime: None,
            xattrs: Vec::new(),
        }
    }
}

impl From<&micabox_tar::Attributes> for Attributes {
    fn from(of: &micabox_tar::Attributes) -> Self {
        Self {
            owner: Owner {
                permissions: of.mode,
                uid: of.uid,
                gid: of.gid,
            },
            mtime: Some(of.mtime),
            xattrs: of.xattrs.clone(),
        }
    }
}
