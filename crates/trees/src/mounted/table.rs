//! The kernel's table of mounts (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) place: PathBuf,
    /// The major and minor number that its files have.
    pub(super) device: (u32, u32),
}

/// Returns what this process sees mounted, in the order in which it was.
pub(super) fn read() -> io::Result<Vec<Entry>> {
    let text = fs::read("/proc/self/mountinfo")?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(entry).collect())
}

/// Returns the device of what is mounted last on a place.
pub(super) fn device_at(place: &Path) -> io::Result<Option<(u32, u32)>> {
    let mut entries = read()?.into_iter().rev();
    let found = entries.find(|entry| entry.place == place);
    Ok(found.map(|entry| entry.device))
}

/// Returns whether this device is mounted on a place.
pub(super) fn has(place: &Path, device: Option<(u32, u32)>) -> io::Result<bool> {
    let mut entries = read()?.into_iter();
    Ok(entries.any(|entry| entry.place == place && Some(entry.device) == device))
}

fn entry(line: &[u8]) -> Option<Entry> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let place = unescaped(words.nth(1)?);
    Some(Entry {
        place: OsString::from_vec(place).into(),
        device: (major.parse().ok()?, minor.parse().ok()?),
    })
}

/// Puts back what the kernel writes as three octal digits: blanks and backslashes.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_with_blanks_is_found() {
        let line = br"36 35 0:58 / /mnt/a\040b\134c rw,noatime master:1 - fuse.mica mica rw";
        let found = entry(line).unwrap();
        assert_eq!(found.place, Path::new(r"/mnt/a b\c"));
        assert_eq!(found.device, (0, 58));
        assert!(
            read()
                .unwrap()
                .iter()
                .any(|entry| entry.place == Path::new("/"))
        );
    }
}
