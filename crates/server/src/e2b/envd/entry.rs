//! A file as E2B's clients see it.

use std::path::{Path, PathBuf};

use micabox::{Error, FileKind, FileStat};
use micabox_async::Files;
use serde::Serialize;

use super::accounts::Accounts;
use micabox_program::output::rfc3339;

/// A file. A symbolic link has the type and mode of what it leads to, and a mark.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    /// What has 64 bits is a string in protobuf's JSON.
    size: String,
    mode: u16,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    /// Clients then show a link, whatever it leads to.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_symlink: bool,
}

/// Describes a file.
pub async fn of(files: &Files, path: &Path) -> Result<Entry, Error> {
    let stat = files.stat_link(path).await?;
    let accounts = Accounts::of(files, stat.uid, stat.gid).await;
    describe(files, path, &stat, &accounts).await
}

/// Describes a file whose own attributes are known.
pub async fn describe(
    files: &Files,
    path: &Path,
    stat: &FileStat,
    accounts: &Accounts,
) -> Result<Entry, Error> {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let modified = u64::try_from(stat.modified.seconds).unwrap_or(0);
    let mut entry = Entry {
        name: name.to_string_lossy().into_owned(),
        kind: kind(stat.kind),
        path: path.to_string_lossy().into_owned(),
        size: stat.size.to_string(),
        mode: stat.mode,
        permissions: permissions(stat),
        owner: accounts.user(stat.uid),
        group: accounts.group(stat.gid),
        modified_time: rfc3339(modified),
        symlink_target: None,
        is_symlink: stat.kind == FileKind::Symlink,
    };
    if stat.kind == FileKind::Symlink {
        let (target, stat) = match led_to(files, path).await {
            Ok((target, stat)) => (target, Some(stat)),
            // It leads nowhere, or not for this user.
            Err(Error::File { .. }) => (path.to_owned(), None),
            Err(error) => return Err(error),
        };
        entry.kind = stat.map_or(UNKNOWN, |stat| kind(stat.kind));
        entry.mode = stat.map_or(0, |stat| stat.mode);
        entry.symlink_target = Some(target.to_string_lossy().into_owned());
    }
    Ok(entry)
}

async fn led_to(files: &Files, path: &Path) -> Result<(PathBuf, FileStat), Error> {
    Ok((files.resolve(path).await?, files.stat(path).await?))
}

const UNKNOWN: &str = "FILE_TYPE_UNSPECIFIED";

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        _ => UNKNOWN,
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
