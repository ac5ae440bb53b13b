//! Random archives are compared with a model of the rules that is too simple to be wrong; damaged
//! ones must be refused or give a sound image.

use std::collections::{BTreeMap, BTreeSet};

use micabox_erofs::format::FileType;
use micabox_erofs::{Reader, check};
use micabox_image::Limits;
use micabox_image::convert::convert_layer;
use proptest::prelude::*;

use crate::layer::archive::{Archive, BLOCK};
use crate::layer::{self, OpenLayer, convert, expect, fast_store, gzip};

/// An entry of a random archive. Paths consist of a few names, so that they collide often.
#[derive(Debug, Clone)]
enum Entry {
    File(String, u8),
    Directory(String),
    Link(String, String),
    Whiteout(String),
    Opaque(String),
}

fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, contents)| Entry::File(path, contents)),
        2 => path().prop_map(Entry::Directory),
        2 => (path(), path()).prop_map(|(path, target)| Entry::Link(path, target)),
        2 => path().prop_map(Entry::Whiteout),
        1 => path().prop_map(Entry::Opaque),
    ]
}

/// Kind of file at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory {
        implied: bool,
    },
    /// Contents, or the target of a hard link that doesn't exist.
    File(usize),
}

#[derive(Default)]
struct Model {
    nodes: BTreeMap<String, Node>,
    /// Contents or a link's target, by number.
    files: Vec<Result<u8, String>>,
    whiteouts: BTreeSet<String>,
    opaque: BTreeSet<String>,
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn below<'a>(path: &'a str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest: &'a str| rest.starts_with('/'))
}

impl Model {
    /// Makes the directories above a path; an error if there is another file.
    fn parents(&mut self, path: &str) -> Result<(), ()> {
        let parent = parent(path);
        match self.nodes.get(parent) {
            _ if parent.is_empty() => Ok(()),
            Some(Node::Directory { .. }) => Ok(()),
            Some(Node::File(_)) => Err(()),
            None => {
                self.parents(parent)?;
                self.nodes
                    .insert(parent.to_owned(), Node::Directory { implied: true });
                Ok(())
            }
        }
    }

    fn put(&mut self, path: &str, node: Node) -> Result<(), ()> {
        self.parents(path)?;
        let keeps = matches!(
            (&node, self.nodes.get(path)),
            (Node::Directory { .. }, Some(Node::Directory { .. }))
        );
        if !keeps {
            // With a directory, its entries and their whiteouts are removed.
            self.nodes.retain(|other, _| !below(other, path));
            self.whiteouts.retain(|other| !below(other, path));
            self.opaque
                .retain(|other| other != path && !below(other, path));
        }
        self.nodes.insert(path.to_owned(), node);
        Ok(())
    }

    fn apply(&mut self, entry: &Entry) -> Result<(), ()> {
        match entry {
            Entry::File(path, contents) => {
                self.files.push(Ok(*contents));
                self.put(path, Node::File(self.files.len() - 1))
            }
            Entry::Directory(path) => self.put(path, Node::Directory { implied: false }),
            Entry::Link(path, target) => {
                self.parents(path)?;
                // The existing part of the target's path must consist of directories.
                let mut way = String::new();
                for name in parent(target).split('/').filter(|name| !name.is_empty()) {
                    way += if way.is_empty() { "" } else { "/" };
                    way += name;
                    match self.nodes.get(&way) {
                        Some(Node::File(_)) => return Err(()),
                        Some(Node::Directory { .. }) => {}
                        None => break,
                    }
                }
                let node = match self.nodes.get(target) {
                    Some(Node::Directory { .. }) => return Err(()),
                    Some(file) => file.clone(),
                    None => {
                        self.files.push(Err(target.clone()));
                        Node::File(self.files.len() - 1)
                    }
                };
                if self.nodes.get(path) == Some(&node) {
                    Ok(())
                } else {
                    self.put(path, node)
                }
            }
            Entry::Whiteout(path) => {
                self.parents(path)?;
                self.whiteouts.insert(path.clone());
                Ok(())
            }
            Entry::Opaque(path) => {
                self.parents(&format!("{path}/x"))?;
                self.opaque.insert(path.clone());
                Ok(())
            }
        }
    }

    /// Returns the end of a chain of links.
    fn resolve(&self, file: usize) -> Result<usize, ()> {
        let mut chain = vec![file];
        loop {
            let last = *chain.last().unwrap();
            let Err(target) = &self.files[last] else {
                return Ok(last);
            };
            let mut way = parent(target);
            while !way.is_empty() {
                if let Some(Node::File(_)) = self.nodes.get(way) {
                    return Err(());
                }
                way = parent(way);
            }
            match self.nodes.get(target) {
                None => return Ok(last),
                Some(Node::Directory { .. }) => return Err(()),
                Some(Node::File(next)) => match chain.iter().position(|file| file == next) {
                    Some(place) => return Ok(*chain[place..].iter().min().unwrap()),
                    None => chain.push(*next),
                },
            }
        }
    }

    /// Returns a line for every file in the layer.
    fn listing(mut self) -> Result<Vec<String>, ()> {
        let resolved: Vec<(String, usize)> = self
            .nodes
            .iter()
            .filter_map(|(path, node)| match node {
                Node::File(file) => Some((path, *file)),
                Node::Directory { .. } => None,
            })
            .map(|(path, file)| Ok((path.clone(), self.resolve(file)?)))
            .collect::<Result<_, ()>>()?;
        for (path, file) in resolved {
            self.nodes.insert(path, Node::File(file));
        }

        let mut hidden = BTreeSet::new();
        for whiteout in self.whiteouts.clone() {
            let real = |path: &str, node: &Node| {
                (path == whiteout || below(path, &whiteout))
                    && *node != Node::Directory { implied: true }
            };
            if self.nodes.iter().any(|(path, node)| real(path, node)) {
                if let Some(Node::Directory { .. }) = self.nodes.get(&whiteout) {
                    self.opaque.insert(whiteout);
                }
            } else {
                self.nodes
                    .retain(|path, _| *path != whiteout && !below(path, &whiteout));
                hidden.insert(whiteout);
            }
        }
        let outer = hidden.clone();
        hidden.retain(|path| !outer.iter().any(|outer| below(path, outer)));

        let mut lines: Vec<_> = hidden
            .into_iter()
            .map(|path| format!("/{path} hidden"))
            .collect();
        for (path, node) in &self.nodes {
            lines.push(match node {
                Node::Directory { implied } => format!(
                    "/{path} directory{}{}",
                    if *implied { " implied" } else { "" },
                    if self.opaque.contains(path) {
                        " opaque"
                    } else {
                        ""
                    },
                ),
                Node::File(file) => {
                    let names = self.nodes.values().filter(|other| *other == node).count();
                    match &self.files[*file] {
                        Ok(contents) => format!("/{path} {contents} x{names}"),
                        Err(target) => format!("/{path} -> /{target} x{names}"),
                    }
                }
            });
        }
        lines.sort();
        Ok(lines)
    }
}

/// Returns the same lines for a converted layer.
fn listing(layer: &OpenLayer) -> Vec<String> {
    let mut lines: Vec<_> = layer
        .paths()
        .into_iter()
        .map(|path| path[1..].to_owned())
        .filter(|path| path != "/")
        .map(|path| {
            let inode = layer.inode(&path);
            match inode.kind {
                FileType::Directory => format!(
                    "{path} directory{}{}",
                    if layer.is_implied(&path) {
                        " implied"
                    } else {
                        ""
                    },
                    if layer.is_opaque(&path) {
                        " opaque"
                    } else {
                        ""
                    },
                ),
                FileType::CharDevice => format!("{path} hidden"),
                _ => match layer.lower_target(&path) {
                    Some(target) => format!("{path} -> {target} x{}", inode.nlink),
                    None => format!("{path} {} x{}", layer.read(&path)[0], inode.nlink),
                },
            }
        })
        .collect();
    lines.sort();
    lines
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let hidden = |path: &str| match path.rsplit_once('/') {
        Some((parent, name)) => format!("{parent}/.wh.{name}"),
        None => format!(".wh.{path}"),
    };
    let add = |archive: Archive, entry: &Entry| match entry {
        Entry::File(path, contents) => archive.file(path, [*contents]),
        Entry::Directory(path) => archive.directory(path),
        Entry::Link(path, target) => archive.hard_link(path, target),
        Entry::Whiteout(path) => archive.whiteout(&hidden(path)),
        Entry::Opaque(path) => archive.whiteout(&format!("{path}/.wh..wh..opq")),
    };
    entries.iter().fold(Archive::new(), add).finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_archives_mean_what_the_model_says(entries in prop::collection::vec(entry(), 1..14)) {
        let mut model = Model::default();
        let applied = entries.iter().try_for_each(|entry| model.apply(entry));
        let expected = applied.and_then(|()| model.listing());
        let store = fast_store();
        let converted = convert(&store, &archive(&entries));
        match (converted, expected) {
            (Ok(layer), Ok(expected)) => {
                prop_assert_eq!(listing(&OpenLayer::new(store, layer)), expected);
            }
            (Err(_), Err(())) => {}
            (Ok(_), Err(())) => prop_assert!(false, "accepted"),
            (Err(error), Ok(_)) => prop_assert!(false, "refused: {}", error),
        }
    }

    #[test]
    fn damaged_archives_are_refused_or_give_a_sound_image(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        mend in any::<bool>(),
        compress in any::<bool>(),
    ) {
        let mut bytes = everything();
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
            if mend {
                mend_checksum(&mut bytes[at / BLOCK * BLOCK..][..BLOCK]);
            }
        }
        let blob = if compress { gzip(&bytes) } else { bytes.clone() };
        let store = fast_store();
        let limits = Limits { sparse_segments: 1000, ..Limits::default() };
        match convert_layer(&store, &blob[..], &expect(&blob, &bytes), &limits) {
            Err(_) => layer::assert_no_trace(&store),
            Ok(layer) => {
                let image = std::fs::File::open(&layer.path).unwrap();
                prop_assert_eq!(check::check(&image), []);
                Reader::open(image).unwrap().walk(|_, _| Ok(())).unwrap();
                prop_assert!(layer::archive_of(&store, &layer) == bytes);
            }
        }
    }

    #[test]
    fn damaged_blobs_never_do_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        zstd in any::<bool>(),
    ) {
        let archive = everything();
        let mut blob = if zstd { zstd::encode_all(&archive[..], 1).unwrap() } else { gzip(&archive) };
        for (index, value) in changes {
            let at = index.index(blob.len());
            blob[at] = value;
        }
        let store = fast_store();
        let honest = expect(&blob, &archive);
        if convert_layer(&store, &blob[..], &honest, &Limits::default()).is_err() {
            layer::assert_no_trace(&store);
        }
    }
}

/// An archive with a part of every dialect.
fn everything() -> Vec<u8> {
    Archive::new()
        .directory("./")
        .pax(&[
            ("path", b"long/name"),
            ("mtime", b"1.5"),
            ("SCHILY.xattr.user.a", b"b"),
        ])
        .file("x", "contents".repeat(200))
        .gnu_long(b'L', b"gnu/name")
        .symlink("s", "long")
        .hard_link("h", "long/name")
        .hard_link("later", "even/later")
        .whiteout("d/.wh.x")
        .whiteout("o/.wh..wh..opq")
        .device(b'3', "null", 1, 3)
        .header(257, "ustar  \0")
        .header(386, "00000010000\x0000000000005\0")
        .header(483, "00001000000\0")
        .member(b'S', b"sparse", b"", 0o644, b"12345")
        .pax(&[
            ("GNU.sparse.size", b"99999"),
            ("GNU.sparse.map", b"4096,3,90000,2"),
        ])
        .file("sparse-too", "12345")
        .pax(&[(
            "SCHILY.acl.access",
            b"user::rwx,user:7:r--,group::---,mask::r--,other::---",
        )])
        .file("even/later", "")
        .finish()
}

fn mend_checksum(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
