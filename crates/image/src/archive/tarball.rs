//! A tar archive as a set of files, read in place.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use micabox_tar::{Kind, Reader};

use super::{Member, Problem};
use crate::Limits;
use crate::printable;

/// Most members of an archive: more than any archive of images has, with a few for each layer.
const MAX_MEMBERS: usize = 1 << 18;
/// Most bytes of all names and link targets together.
const MAX_NAMES: usize = 64 << 20;
/// Most links to links.
const MAX_LINKS: usize = 8;
const BLOCK: u64 = 512;

/// An indexed archive. Of several members with one name the last one counts, as after unpacking.
#[derive(Debug)]
pub(super) struct Tarball {
    file: Arc<File>,
    members: HashMap<String, Place>,
}

#[derive(Debug)]
enum Place {
    File {
        offset: u64,
        size: u64,
    },
    /// Target as a name from the archive's root.
    Link(String),
    /// A directory, a device, or a link that leads out of the archive.
    Other,
}

impl Tarball {
    pub(super) fn index(file: File, limits: &Limits) -> Result<Self, Problem> {
        let length = file.metadata().map_err(Problem::Open)?.len();
        let file = Arc::new(file);
        let mut members = HashMap::new();
        let (mut at, mut names) = (0, 0);
        loop {
            // A reader for each member, placed after the contents of the one before: the contents
            // are skipped, not read.
            let section = Section::new(&file, at, length);
            let mut reader = Reader::new(BufReader::with_capacity(4096, section), limits.member());
            let entry = reader.next_member();
            let start = at;
            let failed = |problem: String, name: &[u8]| Problem::Tar {
                offset: start,
                name: printable(&String::from_utf8_lossy(name)),
                problem,
            };
            let entry = match entry {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(error) => return Err(failed(error.to_string(), reader.name())),
            };
            let offset = at + reader.offset();
            let size = match entry.kind {
                Kind::File { size, .. } => size,
                _ => 0,
            };
            let end = offset.checked_add(size).filter(|end| *end <= length);
            let Some(end) = end else {
                return Err(failed(
                    "the archive ends within this file".to_owned(),
                    &entry.path,
                ));
            };
            at = end.next_multiple_of(BLOCK);

            names += entry.path.len() + entry.kind.target().len();
            if members.len() >= MAX_MEMBERS || names > MAX_NAMES {
                return Err(failed(
                    "there are too many files in it".to_owned(),
                    &entry.path,
                ));
            }
            // A member without a name within the archive can't be referred to either.
            let Some(name) = utf8(&entry.path).and_then(|name| resolve("", name)) else {
                continue;
            };
            let target = utf8(entry.kind.target());
            let place = match entry.kind {
                Kind::File { segments: None, .. } => Place::File { offset, size },
                Kind::HardLink(_) => link(target.and_then(|target| resolve("", target))),
                Kind::Symlink(_) => {
                    let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                    link(target.and_then(|target| resolve(parent, target)))
                }
                _ => Place::Other,
            };
            members.insert(name, place);
        }
        if members.is_empty() {
            return Err(Problem::NoImage);
        }
        Ok(Self { file, members })
    }

    pub(super) fn member(&self, name: &str) -> Result<Option<Member>, Problem> {
        let not_a_file = || Problem::NotAFile {
            name: printable(name),
        };
        let mut at = resolve("", name).ok_or_else(not_a_file)?;
        for followed in 0..=MAX_LINKS {
            match self.members.get(&at) {
                Some(Place::File { offset, size }) => {
                    let section = Section::new(&self.file, *offset, offset + size);
                    return Ok(Some(Member {
                        size: *size,
                        contents: Box::new(section),
                    }));
                }
                Some(Place::Link(target)) => at.clone_from(target),
                Some(Place::Other) => return Err(not_a_file()),
                None if followed == 0 => return Ok(None),
                None => return Err(not_a_file()),
            }
        }
        Err(not_a_file())
    }
}

fn link(target: Option<String>) -> Place {
    target.map_or(Place::Other, Place::Link)
}

fn utf8(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Returns `path`, relative to the directory `from`, as a name from the archive's root; `None` if
/// it leads out of the archive.
fn resolve(from: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in from.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Part of a file, with its own position: any number of them can be read in parallel.
struct Section {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Section {
    fn new(file: &Arc<File>, at: u64, end: u64) -> Self {
        Self {
            file: Arc::clone(file),
            at,
            end,
        }
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(self.at);
        let count = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_the_archive() {
        for (from, path, name) in [
            ("", "manifest.json", Some("manifest.json")),
            ("", "./a//b/.", Some("a/b")),
            ("a", "../b/layer.tar", Some("b/layer.tar")),
            ("a/b", "../../c", Some("c")),
            ("a", "../../c", None),
            ("", "..", None),
            ("a", "/etc/passwd", None),
            ("", "a/../../b", None),
        ] {
            assert_eq!(resolve(from, path).as_deref(), name, "{from} {path}");
        }
    }
}
