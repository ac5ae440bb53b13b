//! Requests that list a directory.

use micabox_fuse::message::{ENTRY_ATTRIBUTES, Entry, MOST_DATA, Reply, Request};
use micabox_memfs::Errno;

use super::Tree;

impl Tree<'_> {
    pub(super) fn list(&self, request: &Request<'_>, is_plus: bool) -> Result<Reply, Errno> {
        let mut body = request.body;
        body.u64()?; // The open directory.
        let (offset, size) = (body.u64()?, body.u32()?.min(MOST_DATA));
        let mut reply = Reply::new();
        self.files.list(request.node, offset, |listed, hold| {
            let entry = Entry {
                number: listed.number,
                after: listed.after,
                mode: listed.kind.mode().into(),
                name: listed.name,
            };
            if reply.length() + entry.length(is_plus) > size as usize {
                return false;
            }
            match hold {
                _ if !is_plus => {}
                Some(hold) => match hold() {
                    Ok(stat) => self.add_entry(&mut reply, &stat),
                    // A file of the lower that can't be read: its lookup returns the error.
                    Err(_) => reply.bytes(&[0; ENTRY_ATTRIBUTES]),
                },
                // The directory itself and the one above, which nothing looks up.
                None => reply.bytes(&[0; ENTRY_ATTRIBUTES]),
            }
            reply.directory_entry(&entry);
            true
        })?;
        Ok(reply)
    }
}
