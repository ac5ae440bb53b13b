//! Prints notes about a disk that was read.

use std::path::PathBuf;

use micabox::{LeftOut, Notes};
use micabox_overlay::host::unpack::Unpacked;

use micabox_program::output::write_stderr;

/// Prints the notes to stderr. `whose` names the disk's sandbox.
pub fn print(notes: &Notes, whose: &str) {
    if notes.damaged {
        write_stderr(&format!(
            "mica: warning: the disk of {whose} is marked as having errors, which a full host \
             disk also causes: the result may be incomplete\n"
        ));
    }
    print_sockets(notes);
}

/// Prints the sockets that were left out of an archive.
pub fn print_sockets(notes: &Notes) {
    let mut text = String::new();
    for socket in &notes.sockets {
        let path = socket.escape_ascii();
        text.push_str(&format!(
            "mica: /{path}: a socket, which archives cannot hold\n"
        ));
    }
    if notes.more_sockets > 0 {
        let count = notes.more_sockets;
        text.push_str(&format!("mica: {count} more sockets are not listed\n"));
    }
    if !text.is_empty() {
        write_stderr(&text);
    }
}

/// Prints what could not be made in a sandbox.
pub fn print_left_out(left_out: &[LeftOut]) {
    for LeftOut { path, what } in left_out {
        write_stderr(&format!("mica: warning: {}: {what}\n", path.escape_ascii()));
    }
}

/// Prints the host's sockets that were not copied.
pub fn print_host_sockets(sockets: &[PathBuf]) {
    for socket in sockets {
        let path = socket.display();
        write_stderr(&format!(
            "mica: {path}: a socket, which archives cannot hold\n"
        ));
    }
}

/// Prints what could not be made on the host.
pub fn print_unpacked(unpacked: &Unpacked) {
    if let Some(path) = &unpacked.special {
        write_stderr(&format!(
            "mica: warning: devices and FIFOs are only copied by root, with -a: {} left out, the \
             first was {}\n",
            unpacked.specials,
            path.display()
        ));
    }
    if let Some((path, name)) = &unpacked.xattr {
        write_stderr(&format!(
            "mica: warning: extended attributes that this user or filesystem can't have: {} left \
             out, the first was {} of {}\n",
            unpacked.xattrs,
            name.escape_ascii(),
            path.display()
        ));
    }
}
