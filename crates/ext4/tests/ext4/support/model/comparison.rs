//! Describes the engine's state in the form of the model.

use std::collections::BTreeMap;

use micabox_ext4::{BlockDevice, Ext4, FileKind, Ino, ROOT};

use super::summary;

fn paths<D: BlockDevice>(filesystem: &mut Ext4<D>) -> Vec<(String, Ino)> {
    let mut found = Vec::new();
    let mut rest = vec![(String::new(), ROOT)];
    while let Some((prefix, ino)) = rest.pop() {
        if filesystem.stat(ino).unwrap().kind() == Some(FileKind::Directory) {
            for entry in filesystem.read_dir(ino).unwrap() {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                if name != "lost+found" {
                    rest.push((format!("{prefix}/{name}"), entry.ino));
                }
            }
        }
        found.push((prefix, ino));
    }
    found.sort();
    found
}

/// Returns names and types of a filesystem in the form of [`Model::shape`](super::Model::shape).
pub fn shape<D: BlockDevice>(filesystem: &mut Ext4<D>) -> String {
    let mut numbers = BTreeMap::new();
    paths(filesystem)
        .into_iter()
        .map(|(path, ino)| {
            let next = numbers.len();
            let number = *numbers.entry(ino).or_insert(next);
            let kind = match filesystem.stat(ino).unwrap().kind().unwrap() {
                FileKind::Directory => 'd',
                FileKind::Symlink => 'l',
                _ => 'f',
            };
            format!("{kind} {number} {path}\n")
        })
        .collect()
}

/// Returns every inode of a filesystem in the form of
/// [`Model::unchanged`](super::Model::unchanged).
pub fn describe<D: BlockDevice>(filesystem: &mut Ext4<D>) -> BTreeMap<String, String> {
    let all = paths(filesystem);
    all.into_iter()
        .map(|(path, ino)| {
            let stat = filesystem.stat(ino).unwrap();
            let contents = match stat.kind().unwrap() {
                FileKind::Directory => {
                    let mut names: Vec<String> = filesystem
                        .read_dir(ino)
                        .unwrap()
                        .into_iter()
                        .map(|entry| String::from_utf8(entry.name.to_vec()).unwrap())
                        .filter(|name| name != "lost+found")
                        .collect();
                    names.sort();
                    names.join(",")
                }
                FileKind::Symlink => String::from_utf8(filesystem.read_link(ino).unwrap()).unwrap(),
                _ => {
                    let mut data = vec![0; stat.size as usize];
                    assert_eq!(filesystem.read(ino, 0, &mut data).unwrap(), data.len());
                    summary(&data)
                }
            };
            let mut names = filesystem.xattr_names(ino).unwrap();
            names.sort();
            let xattrs: Vec<String> = names
                .iter()
                .map(|name| {
                    let value = filesystem.xattr(ino, name).unwrap();
                    format!("{}={}", String::from_utf8_lossy(name), summary(&value))
                })
                .collect();
            (
                path,
                format!("{:o} {xattrs:?} {contents}", stat.mode & 0o7777),
            )
        })
        .collect()
}

/// Panics unless both agree on everything that `expected` contains.
#[track_caller]
pub fn assert_includes(
    found: &BTreeMap<String, String>,
    expected: &BTreeMap<String, String>,
    when: &str,
) {
    for (path, description) in expected {
        let found = found.get(path);
        if found != Some(description) {
            let cut = |text: &str| text.chars().take(700).collect::<String>();
            panic!(
                "{when}: {path}:\nis        {}\nshould be {}",
                found.map_or("not there".to_owned(), |found| cut(found)),
                cut(description)
            );
        }
    }
}
