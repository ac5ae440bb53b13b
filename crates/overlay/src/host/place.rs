//! Computes the destination of a copy: Docker's rules.

use crate::view::PathKind;

/// The destination of a copy.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// The parent directory; `.` if a relative path names none.
    pub parent: Vec<u8>,
    /// The name in the parent. Empty: the directory's contents go into the parent.
    pub name: Vec<u8>,
}

/// Returns the destination of a file called `named` that is copied to `to`, which leads to `kind`.
/// `contents`: the directory's contents are copied, not the directory itself.
///
/// # Errors
/// Why the copy is impossible.
pub fn place(
    is_directory: bool,
    contents: bool,
    named: &[u8],
    to: &[u8],
    kind: PathKind,
) -> Result<Place, String> {
    let text = || String::from_utf8_lossy(to);
    let into = |name: &[u8]| Place {
        parent: to.to_vec(),
        name: name.to_vec(),
    };
    match kind {
        PathKind::Directory if is_directory && contents => Ok(into(b"")),
        PathKind::Directory => Ok(into(named)),
        PathKind::Other if is_directory => Err(format!(
            "{}: a directory can't take the place of a file",
            text()
        )),
        PathKind::Other => Ok(split(to)),
        PathKind::Nothing if !is_directory && to.ends_with(b"/") => {
            Err(format!("`{}`: no such directory", text()))
        }
        PathKind::Nothing => Ok(split(to)),
    }
}

/// Splits a path into parent and last name.
fn split(path: &[u8]) -> Place {
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |at| at + 1);
    let path = path.get(..end).unwrap_or_default();
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => path.split_at(1),
        Some(slash) => {
            let (parent, name) = path.split_at(slash);
            (parent, name.get(1..).unwrap_or_default())
        }
        None => (&b"."[..], path),
    };
    Place {
        parent: parent.to_vec(),
        name: name.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copys_target_follows_dockers_rules() {
        use PathKind::{Directory, Nothing, Other};
        let at = |parent: &str, name: &str| {
            Ok(Place {
                parent: parent.into(),
                name: name.into(),
            })
        };
        let file = |to: &str, kind| place(false, false, b"f", to.as_bytes(), kind);
        assert_eq!(file("/a/b", Nothing), at("/a", "b"));
        assert_eq!(file("/b", Nothing), at("/", "b"));
        assert_eq!(file("b", Nothing), at(".", "b"));
        assert_eq!(file("/a/b", Other), at("/a", "b"));
        assert_eq!(file("/a/b", Directory), at("/a/b", "f"));
        file("/a/b/", Nothing).unwrap_err();
        let directory = |contents, to: &str, kind| place(true, contents, b"d", to.as_bytes(), kind);
        for contents in [false, true] {
            assert_eq!(directory(contents, "/a/b", Nothing), at("/a", "b"));
            assert_eq!(directory(contents, "/a/b/", Nothing), at("/a", "b"));
            directory(contents, "/a/b", Other).unwrap_err();
        }
        assert_eq!(directory(false, "/a/b", Directory), at("/a/b", "d"));
        assert_eq!(directory(true, "/a/b", Directory), at("/a/b", ""));
    }
}
