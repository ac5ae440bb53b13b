//! A tree, as a program sees it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, Mode, OFlags, openat};

use super::operation::{Attributes, attributes, target, xattrs};

/// All of a file that filesystems must agree on.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    attributes: Attributes,
    target: Option<Vec<u8>>,
    contents: Option<Vec<u8>>,
    xattrs: Vec<u8>,
}

/// Returns all files below a directory, by path.
pub fn read(root: &OwnedFd) -> BTreeMap<String, Seen> {
    let mut seen = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(directory) = left.pop() {
        let path = if directory.is_empty() {
            "."
        } else {
            &directory
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = openat(root, path, flags, Mode::empty()).unwrap();
        for entry in Dir::read_from(&opened).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_str().unwrap();
            if name == "." || name == ".." {
                continue;
            }
            let path = if directory.is_empty() {
                name.to_owned()
            } else {
                format!("{directory}/{name}")
            };
            if entry.file_type().is_dir() {
                left.push(path.clone());
            }
            let one = file(
                root,
                &path,
                entry.file_type().is_file(),
                entry.file_type().is_dir(),
            );
            assert!(seen.insert(path, one).is_none(), "listed twice");
        }
    }
    seen
}

fn file(root: &OwnedFd, path: &str, is_file: bool, is_directory: bool) -> Seen {
    let open = || openat(root, path, OFlags::RDONLY, Mode::empty()).unwrap();
    let contents = is_file.then(|| {
        let mut contents = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(open()), &mut contents).unwrap();
        contents
    });
    Seen {
        attributes: attributes(root, path).unwrap(),
        target: target(root, path),
        contents,
        xattrs: if is_file || is_directory {
            xattrs(&open()).unwrap()
        } else {
            Vec::new()
        },
    }
}
