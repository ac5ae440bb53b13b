//! Prints notes about what was read or made.

use std::path::PathBuf;

use micabox::LeftOut;
use micabox_overlay::host::unpack::Unpacked;

pub use micabox_program::notes::{print, print_sockets};
use micabox_program::output::write_stderr;

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
