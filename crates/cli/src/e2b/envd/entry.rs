//! A file as E2B's clients see it.

use std::path::{Path, PathBuf};

use micabox::{FileKind, FileStat, Files};
use serde_json::{Value, json};

use super::accounts::Accounts;
use crate::e2b::problem::Problem;
use crate::output::rfc3339;

/// Describes a file; a symbolic link itself.
pub fn of(files: &Files, path: &Path, accounts: &Accounts) -> Result<Value, Problem> {
    let stat = files.stat_link(path)?;
    let target = match stat.kind {
        FileKind::Symlink => Some(files.read_link(path)?),
        _ => None,
    };
    Ok(describe(path, &stat, target, accounts))
}

/// Describes a file of which all is known.
pub fn describe(
    path: &Path,
    stat: &FileStat,
    target: Option<PathBuf>,
    accounts: &Accounts,
) -> Value {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let modified = u64::try_from(stat.modified.seconds).unwrap_or(0);
    let mut entry = json!({
        "name": name.to_string_lossy(),
        "type": kind(stat.kind),
        "path": path.to_string_lossy(),
        // What has 64 bits is a string in protobuf's JSON.
        "size": stat.size.to_string(),
        "mode": stat.mode,
        "permissions": permissions(stat),
        "owner": accounts.user(stat.uid),
        "group": accounts.group(stat.gid),
        "modifiedTime": rfc3339(modified),
    });
    if let (Some(target), Some(entry)) = (target, entry.as_object_mut()) {
        entry.insert("symlinkTarget".to_owned(), json!(target.to_string_lossy()));
        entry.insert("isSymlink".to_owned(), json!(true));
    }
    entry
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Symlink => "FILE_TYPE_SYMLINK",
        _ => "FILE_TYPE_UNSPECIFIED",
    }
}

/// Permissions as `ls -l` writes them; the first letter is `-`, or that of a directory or link.
fn permissions(stat: &FileStat) -> String {
    let first = match stat.kind {
        FileKind::Directory => 'd',
        // As Go writes it, in which E2B's server is written.
        FileKind::Symlink => 'L',
        _ => '-',
    };
    let mode = stat.mode;
    let bits = "rwxrwxrwx".chars().enumerate().map(|(at, letter)| {
        let is_set = mode >> (8 - at) & 1 == 1;
        if is_set { letter } else { '-' }
    });
    std::iter::once(first).chain(bits).collect()
}
