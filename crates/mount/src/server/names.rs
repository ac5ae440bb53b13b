//! Requests about names.

use micabox_fuse::message::{Attributes, Reply, Request, device_of};
use micabox_memfs::{Errno, FileKind, New, RenameMode};

use super::{Tree, VALID, two_names};

/// How to rename (`RENAME_*`, `linux/fs.h`).
const NOREPLACE: u32 = 1 << 0;
const EXCHANGE: u32 = 1 << 1;
const WHITEOUT: u32 = 1 << 2;

/// Returns the bits of a mode or umask that are not the type.
fn bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

impl Tree<'_> {
    pub(super) fn look_up(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let name = { request.body }.name()?.to_bytes();
        match self.files.look_up(request.node, name) {
            Ok(stat) => Ok(self.entry(&stat)),
            Err(Errno::NOENT) => {
                // Number 0: there is no such name, and the kernel may remember it.
                let mut reply = Reply::new();
                reply.entry(0, &Attributes::default(), VALID, VALID);
                Ok(reply)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes something new with a name.
    fn make(&self, request: &Request<'_>, name: &[u8], new: &New<'_>) -> Result<Reply, Errno> {
        Ok(self.entry(&self.files.make(request.node, name, new)?))
    }

    pub(super) fn make_node(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let (mode, device, umask) = (body.u32()?, body.u32()?, body.u32()?);
        body.u32()?; // Padding.
        let name = body.name()?.to_bytes();
        let kind = FileKind::from_mode((mode & 0o177_777) as u16).ok_or(Errno::INVAL)?;
        let device = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => device_of(device),
            _ => (0, 0),
        };
        let new = New::of(kind, bits(mode), device, request.uid, request.gid);
        self.make(request, name, &new.umask(bits(umask)))
    }

    pub(super) fn make_directory(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let (mode, umask) = (body.u32()?, body.u32()?);
        let name = body.name()?.to_bytes();
        let new = New::directory(bits(mode), request.uid, request.gid);
        self.make(request, name, &new.umask(bits(umask)))
    }

    pub(super) fn make_link(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let (name, target) = (body.name()?.to_bytes(), body.text()?.to_bytes());
        self.make(
            request,
            name,
            &New::symlink(target, request.uid, request.gid),
        )
    }

    pub(super) fn create(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let [_flags, mode, umask, _open_flags] =
            [body.u32()?, body.u32()?, body.u32()?, body.u32()?];
        let name = body.name()?.to_bytes();
        let new = New::file(bits(mode), request.uid, request.gid).umask(bits(umask));
        let mut reply = self.make(request, name, &new)?;
        self.opened(&mut reply);
        Ok(reply)
    }

    pub(super) fn create_unnamed(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let [_flags, mode, umask] = [body.u32()?, body.u32()?, body.u32()?];
        let new = New::file(bits(mode), request.uid, request.gid).umask(bits(umask));
        let mut reply = self.entry(&self.files.make_unnamed(request.node, &new)?);
        self.opened(&mut reply);
        Ok(reply)
    }

    pub(super) fn link(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let (file, name) = (body.u64()?, body.name()?.to_bytes());
        Ok(self.entry(&self.files.link(file, request.node, name)?))
    }

    pub(super) fn unlink(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let name = { request.body }.name()?.to_bytes();
        self.files.unlink(request.node, name)?;
        Ok(Reply::new())
    }

    pub(super) fn remove_directory(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let name = { request.body }.name()?.to_bytes();
        self.files.remove_directory(request.node, name)?;
        Ok(Reply::new())
    }

    pub(super) fn rename(&self, request: &Request<'_>, has_flags: bool) -> Result<Reply, Errno> {
        let mut body = request.body;
        let directory = body.u64()?;
        let flags = if has_flags { body.u64()? as u32 } else { 0 };
        let (old, new) = two_names(&mut body)?;
        let mode = match flags {
            0 => RenameMode::Replace,
            NOREPLACE => RenameMode::NoReplace,
            EXCHANGE => RenameMode::Exchange,
            WHITEOUT => RenameMode::Whiteout {
                uid: request.uid,
                gid: request.gid,
            },
            _ => return Err(Errno::INVAL),
        };
        self.files.rename(request.node, old, directory, new, mode)?;
        Ok(Reply::new())
    }
}
