//! `--upper`.

use micabox::Upper;

use super::mount::on_host;
use super::word;

/// Reads where changes go; a folder's path is made absolute.
pub fn upper(text: &str) -> Result<Upper, String> {
    match word(text)? {
        Upper::Folder { path } => Ok(Upper::Folder {
            path: on_host(&path)?,
        }),
        upper => Ok(upper),
    }
}
