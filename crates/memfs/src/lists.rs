//! Access control lists, as far as they are a filesystem's task: a file's list and its permission bits
//! are one, and new files get what their directory says (acl(5)).

use micabox_file::FileKind;
use micabox_file::acl::Acl;
use rustix::io::Errno;

use crate::Result;
use crate::inode::{New, State};
use crate::mode::SET_GID;
use crate::room::Room;
use crate::xattr::set::{ACCESS, DEFAULT, remove, take};

const PERMISSIONS: u16 = 0o777;

/// Gives a new inode its mode, group and lists, from the directory that it is made in.
pub(crate) fn inherit(
    room: &Room,
    directory: &State,
    new: &New<'_>,
    state: &mut State,
) -> Result<()> {
    if directory.mode & SET_GID != 0 {
        state.gid = directory.gid;
        if new.kind == FileKind::Directory {
            state.mode |= SET_GID;
        }
    }
    if new.kind == FileKind::Symlink {
        return Ok(());
    }
    let list = directory.xattrs.get(DEFAULT);
    let Some(list) = list.and_then(|value| Acl::parse(value)) else {
        state.mode &= !new.umask;
        return Ok(());
    };
    let access = list.inherited(new.mode.into());
    state.mode = state.mode & !PERMISSIONS | permissions(&access);
    if !access.is_minimal() {
        take(room, &mut state.xattrs, ACCESS, &access.value())?;
    }
    if new.kind == FileKind::Directory {
        let added = take(room, &mut state.xattrs, DEFAULT, &list.value());
        if added.is_err() {
            remove(room, &mut state.xattrs, ACCESS);
        }
        added?;
    }
    Ok(())
}

/// Sets a file's list, and its permission bits with it.
pub(crate) fn set_access(
    room: &Room,
    state: &mut State,
    value: &[u8],
    kill_group: bool,
) -> Result<()> {
    let list = Acl::parse(value).ok_or(Errno::INVAL)?;
    if list.is_minimal() {
        remove(room, &mut state.xattrs, ACCESS);
    } else {
        take(room, &mut state.xattrs, ACCESS, value)?;
    }
    state.mode = state.mode & !PERMISSIONS | permissions(&list);
    if kill_group {
        state.mode &= !SET_GID;
    }
    Ok(())
}

/// Makes a file's list, if it has one, follow its permission bits.
pub(crate) fn follow_mode(state: &mut State) {
    let mode = state.mode;
    if let Some(value) = state.xattrs.get_mut(ACCESS)
        && let Some(list) = Acl::parse(value)
    {
        // As long as before.
        *value = list.with_mode(mode.into()).value().into();
    }
}

fn permissions(list: &Acl) -> u16 {
    u16::try_from(list.mode()).unwrap_or_default() & PERMISSIONS
}
