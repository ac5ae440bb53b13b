//! What something new is like.

use micabox_ext4::{Owner, Timestamp};

/// What something new is like.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Permissions, but for symbolic links, and owner.
    pub owner: Owner,
    /// Last change of the contents; otherwise now.
    pub mtime: Option<Timestamp>,
    /// Names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Root's, and new.
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
