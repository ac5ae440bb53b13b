//! Prints notes about a disk that was read.

use micabox::Notes;

use crate::output::write_stderr;

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
