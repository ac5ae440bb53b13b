//! Requests about extended attributes.

use micabox_fuse::message::{Reply, Request};
use micabox_memfs::{Errno, SetMode};

use super::Tree;

/// Flags of setxattr(2).
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// The set-group-id bit goes with a new access control list (`FUSE_SETXATTR_ACL_KILL_SGID`).
const KILL_SET_GROUP: u32 = 1;

impl Tree<'_> {
    pub(super) fn set_xattr(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let [size, flags, more, _padding] = [body.u32()?, body.u32()?, body.u32()?, body.u32()?];
        let (name, value) = (body.text()?.to_bytes(), body.bytes(size)?);
        let mode = match flags {
            CREATE => SetMode::Create,
            REPLACE => SetMode::Replace,
            _ => SetMode::Any,
        };
        let kill = more & KILL_SET_GROUP != 0;
        self.files
            .set_xattr(request.node, name, value, mode, kill)?;
        Ok(Reply::new())
    }

    pub(super) fn xattr(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let size = body.u64()? as u32;
        let value = self.files.xattr(request.node, body.text()?.to_bytes())?;
        sized(size, &value)
    }

    pub(super) fn list_xattrs(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let size = { request.body }.u64()? as u32;
        sized(size, &self.files.xattr_names(request.node)?)
    }

    pub(super) fn remove_xattr(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let name = { request.body }.text()?.to_bytes();
        self.files.remove_xattr(request.node, name)?;
        Ok(Reply::new())
    }
}

/// Answers with bytes if they fit, or with their number if that is all that is asked for.
fn sized(size: u32, bytes: &[u8]) -> Result<Reply, Errno> {
    let mut reply = Reply::new();
    if size == 0 {
        // `fuse_getxattr_out`.
        reply.u64(bytes.len() as u64);
    } else if bytes.len() > size as usize {
        return Err(Errno::RANGE);
    } else {
        reply.bytes(bytes);
    }
    Ok(reply)
}
