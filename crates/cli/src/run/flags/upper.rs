//! `--upper`.

use micabox::{DEFAULT_DISK_SIZE, Upper};

use super::mebibytes;
use super::mount::on_host;

/// Parses `tmpfs`, `disk`, `disk:SIZE` or `folder:DIR`.
pub fn upper(text: &str) -> Result<Upper, String> {
    let size = match text.split_once(':') {
        None if text == "tmpfs" => return Ok(Upper::Tmpfs),
        None if text == "disk" => DEFAULT_DISK_SIZE,
        Some(("disk", size)) => match mebibytes(size)? {
            mib @ 16.0..=16_777_216.0 => (mib as u64) << 20,
            0.0..16.0 => return Err("a disk needs at least 16m".into()),
            _ => return Err("a disk has at most 16t".into()),
        },
        Some(("folder", path)) if !path.is_empty() => {
            let path = on_host(path)?;
            return Ok(Upper::Folder { path });
        }
        _ => return Err("expected tmpfs, disk, disk:SIZE or folder:DIR".into()),
    };
    Ok(Upper::Disk { size })
}
