//! Types and permissions of files.

use micabox_ext4::FileKind;
use micabox_parsers::ext4::Attributes;

/// Returns the letter for a type, as in `ls -l`.
fn letter(stat: &Attributes) -> char {
    match stat.kind() {
        Some(FileKind::File) => '-',
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::CharDevice) => 'c',
        Some(FileKind::BlockDevice) => 'b',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        None => '?',
    }
}

/// Formats type and permissions, as in `ls -l`.
pub fn mode(stat: &Attributes) -> String {
    let mut text = String::from(letter(stat));
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = stat.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, stat.mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}
