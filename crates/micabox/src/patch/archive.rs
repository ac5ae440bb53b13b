//! Archives as patches.

use std::fs::File;
use std::io::Read;

use micabox_ext4::{FileKind, Owner, Timestamp};
use tar::{Archive, Entry, EntryType};

use super::overlay::{Attributes, Overlay, Problem};

/// Records with extended attributes begin like this, as star, GNU tar and Go have them.
const XATTR: &str = "SCHILY.xattr.";

/// Unpacks an archive below the directory `root`.
pub(super) fn unpack(
    overlay: &mut Overlay<File>,
    root: &[u8],
    from: impl Read,
) -> Result<(), Problem> {
    let mut archive = Archive::new(from);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path_bytes().into_owned();
        member(overlay, root, &mut entry, &path).map_err(|problem| {
            let path = String::from_utf8_lossy(&path);
            Problem::from(&*format!("{path}: {problem}"))
        })?;
    }
    Ok(())
}

fn member(
    overlay: &mut Overlay<File>,
    root: &[u8],
    entry: &mut Entry<'_, impl Read>,
    path: &[u8],
) -> Result<(), Problem> {
    if path.split(|byte| *byte == b'/').any(|name| name == b"..") {
        return Err("a path with `..`".into());
    }
    let below = |path: &[u8]| [root, b"/", path].concat();
    let path = &*below(path);
    let attributes = attributes(entry)?;
    let header = entry.header();
    let device = || -> Result<(u32, u32), Problem> {
        let (major, minor) = (header.device_major()?, header.device_minor()?);
        Ok((major.unwrap_or_default(), minor.unwrap_or_default()))
    };
    let target = entry.link_name_bytes().map(|target| target.into_owned());
    let target = target.unwrap_or_default();
    match header.entry_type() {
        EntryType::Directory => {
            let place = overlay.directory(path)?;
            overlay.set_directory(&place, &attributes)
        }
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            overlay.file(path, &attributes, entry).map(drop)
        }
        EntryType::Symlink => overlay.symlink(path, &target, &attributes).map(drop),
        EntryType::Link => overlay.link(path, &below(&target)),
        EntryType::Char => {
            let device = device()?;
            overlay.node(path, FileKind::CharDevice, device, &attributes)?;
            Ok(())
        }
        EntryType::Block => {
            let device = device()?;
            overlay.node(path, FileKind::BlockDevice, device, &attributes)?;
            Ok(())
        }
        EntryType::Fifo => {
            overlay.node(path, FileKind::Fifo, (0, 0), &attributes)?;
            Ok(())
        }
        // What concerns the archive itself.
        EntryType::XGlobalHeader => Ok(()),
        other => Err(Problem::from(&*format!("a member of type {other:?}"))),
    }
}

fn attributes(entry: &mut Entry<'_, impl Read>) -> Result<Attributes, Problem> {
    let mut xattrs = Vec::new();
    let mut mtime = Timestamp {
        seconds: i64::try_from(entry.header().mtime()?).unwrap_or(i64::MAX),
        nanos: 0,
    };
    let mut ids = (entry.header().uid()?, entry.header().gid()?);
    for record in entry.pax_extensions()?.into_iter().flatten() {
        let record = record?;
        let Ok(key) = record.key() else { continue };
        let value = record.value_bytes();
        let text = || std::str::from_utf8(value).unwrap_or_default();
        match key {
            "uid" => ids.0 = text().parse().unwrap_or(ids.0),
            "gid" => ids.1 = text().parse().unwrap_or(ids.1),
            "mtime" => mtime = time(text()).unwrap_or(mtime),
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    xattrs.push((name.as_bytes().to_vec(), value.to_vec()));
                }
            }
        }
    }
    let id = |id: u64| u32::try_from(id).map_err(|_| Problem::from("an owner beyond 32 bits"));
    let mode = entry.header().mode()? & 0o7777;
    Ok(Attributes {
        owner: Owner {
            permissions: mode as u16,
            uid: id(ids.0)?,
            gid: id(ids.1)?,
        },
        mtime: Some(mtime),
        xattrs,
    })
}

/// Seconds as a decimal fraction, perhaps negative.
fn time(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nanos: u32 = digits.parse().ok()?;
    // -1.5 is half a second after -2.
    if whole.starts_with('-') && nanos > 0 {
        return Some(Timestamp {
            seconds: seconds.checked_sub(1)?,
            nanos: 1_000_000_000 - nanos,
        });
    }
    Some(Timestamp { seconds, nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_fractions() {
        let at = |seconds, nanos| Some(Timestamp { seconds, nanos });
        assert_eq!(time("12"), at(12, 0));
        assert_eq!(time("12.5"), at(12, 500_000_000));
        assert_eq!(time("12.0000000019"), at(12, 1));
        assert_eq!(time("-1.25"), at(-2, 750_000_000));
        assert_eq!(time("-0.25"), at(-1, 750_000_000));
        assert_eq!(time("x"), None);
    }
}
