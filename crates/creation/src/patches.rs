//! The changes to a root before the start, from `--remove`, `--mkdir`, `--patch-tar`, `--patch` and `--symlink`.

use std::os::unix::ffi::OsStrExt;

use micabox::Patch;
use micabox_spec::options::{FileOptions, Pair};

use micabox_program::failure::Failure;

/// Returns the changes before the start: removals first, then directories, archives, files, links.
pub fn patches(files: &FileOptions) -> Result<Vec<Patch>, Failure> {
    let mut patches = Vec::new();
    for path in &files.remove {
        patches.push(Patch::Remove(absolute("--remove", path.as_bytes())?));
    }
    for path in &files.mkdir {
        patches.push(Patch::Directory(absolute("--mkdir", path.as_bytes())?));
    }
    patches.extend(files.patch_tar.iter().cloned().map(Patch::Archive));
    for Pair { first, path } in &files.patch {
        patches.push(Patch::File {
            from: first.into(),
            to: path.as_bytes().to_vec(),
        });
    }
    for Pair { first, path } in &files.symlink {
        patches.push(Patch::Symlink {
            target: first.as_bytes().to_vec(),
            path: path.as_bytes().to_vec(),
        });
    }
    Ok(patches)
}

/// Checks that the path of a flag is absolute.
fn absolute(flag: &str, path: &[u8]) -> Result<Vec<u8>, Failure> {
    if path.starts_with(b"/") {
        Ok(path.to_vec())
    } else {
        let path = String::from_utf8_lossy(path);
        Err(Failure::new(format!(
            "{flag} {path}: the path is not absolute"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::parse;

    #[test]
    fn patches_come_in_a_fixed_order() {
        let args = parse(&[
            "--symlink",
            "../a:/b",
            "--remove",
            "/etc/motd",
            "--patch",
            "x:y:/z",
            "--rm",
            "--mkdir",
            "/d",
            "alpine",
        ]);
        let args = args.unwrap();
        assert!(args.life.rm);
        assert_eq!(
            patches(&args.files).unwrap(),
            [
                Patch::Remove(b"/etc/motd".to_vec()),
                Patch::Directory(b"/d".to_vec()),
                Patch::File {
                    from: "x:y".into(),
                    to: b"/z".to_vec()
                },
                Patch::Symlink {
                    target: b"../a".to_vec(),
                    path: b"/b".to_vec()
                },
            ]
        );
        let args = parse(&["--remove=relative", "alpine"]).unwrap();
        assert!(!args.life.rm);
        assert!(patches(&args.files).is_err());
        assert!(parse(&["--patch", "x:y", "alpine"]).is_err());
    }
}
