//! Random operations, and what they must lead to: a filesystem as a tree in memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use micabox_ext4::{
    BlockDevice, Errno, Ext4, Fallocate, FileKind, Ino, Owner, ROOT, Rename, SetAttributes,
    SetXattr,
};

/// A path: names from the root on.
pub type Path = Vec<String>;

/// Something to do.
#[derive(Debug, Clone)]
pub enum Op {
    Create(Path),
    Mkdir(Path),
    Symlink(Path, String),
    Write {
        path: Path,
        offset: u64,
        length: usize,
        byte: u8,
    },
    Truncate(Path, u64),
    Allocate(Path, u64, u64),
    Punch(Path, u64, u64),
    Zero(Path, u64, u64),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, Rename),
    Chmod(Path, u16),
    SetXattr(Path, String, Vec<u8>),
    RemoveXattr(Path, String),
    Sync,
}

/// A source of numbers that are the same every time.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A name: few, so that operations meet; sometimes long, so that directories grow.
fn name(random: &mut Random, directories: bool) -> String {
    match random.below(8) {
        0 | 1 if directories => format!("d{}", random.below(3)),
        0..5 => format!("f{}", random.below(6)),
        _ => format!(
            "{}{}",
            "n".repeat(random.below(120) as usize),
            random.below(60)
        ),
    }
}

fn path(random: &mut Random) -> Path {
    let mut path: Path = (0..random.below(3))
        .map(|_| format!("d{}", random.below(3)))
        .collect();
    path.push(name(random, true));
    path
}

/// Offsets and lengths: near the edges of blocks and chunks.
fn offset(random: &mut Random) -> u64 {
    let edges = [0, 4096, 8192, 65536, 131_072, 300_000];
    let edge = edges[random.below(edges.len() as u64) as usize];
    edge + random.below(3) * random.below(3000)
}

fn length(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 1 + random.below(10),
        1 => 4096,
        2 => 1 + random.below(20_000),
        _ => 1 + random.below(150_000),
    }
}

impl Op {
    /// Any operation.
    pub fn random(random: &mut Random) -> Self {
        let target = path(random);
        match random.below(34) {
            0..6 => Self::Create(target),
            6..9 => Self::Mkdir(target),
            9 => Self::Symlink(target, "to/".repeat(1 + random.below(60) as usize)),
            10..16 => Self::Write {
                path: target,
                offset: offset(random),
                length: length(random) as usize,
                byte: random.next() as u8,
            },
            16 => Self::Truncate(target, offset(random)),
            17 => Self::Allocate(target, offset(random), length(random)),
            18 => Self::Punch(target, offset(random), length(random)),
            19 => Self::Zero(target, offset(random), length(random)),
            20 | 21 => Self::Link(target, path(random)),
            22..25 => Self::Unlink(target),
            25 => Self::Rmdir(target),
            26..29 => Self::Rename(target, path(random), Rename::Replace),
            29 => Self::Rename(target, path(random), Rename::Exchange),
            30 => Self::Rename(target, path(random), Rename::NoReplace),
            31 => Self::Chmod(target, random.next() as u16 & 0o5777),
            32 => {
                let value = vec![random.next() as u8; random.below(600) as usize];
                Self::SetXattr(target, format!("user.x{}", random.below(4)), value)
            }
            _ => match random.below(4) {
                0 => Self::RemoveXattr(target, format!("user.x{}", random.below(4))),
                _ => Self::Sync,
            },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Contents {
    File(Vec<u8>),
    Directory(BTreeMap<String, usize>),
    Symlink(String),
}

#[derive(Debug, Clone)]
struct Node {
    contents: Contents,
    permissions: u16,
    xattrs: BTreeMap<String, Vec<u8>>,
    /// The operation that changed it last.
    changed: usize,
}

/// A filesystem as a tree in memory.
#[derive(Debug, Clone)]
pub struct Model {
    /// Shared with the copies of earlier moments.
    nodes: Vec<Rc<Node>>,
    /// Operations done.
    pub done: usize,
}

pub type Outcome = Result<(), Errno>;

impl Model {
    pub fn new() -> Self {
        let root = Node {
            contents: Contents::Directory(BTreeMap::new()),
            permissions: 0o755,
            xattrs: BTreeMap::new(),
            changed: 0,
        };
        Self {
            nodes: vec![Rc::new(root)],
            done: 0,
        }
    }

    fn directory(&self, node: usize) -> Result<&BTreeMap<String, usize>, Errno> {
        match &self.nodes[node].contents {
            Contents::Directory(names) => Ok(names),
            _ => Err(Errno::NotADirectory),
        }
    }

    fn directory_mut(&mut self, node: usize) -> &mut BTreeMap<String, usize> {
        let done = self.done;
        let node = self.node_mut(node);
        node.changed = done;
        match &mut node.contents {
            Contents::Directory(names) => names,
            _ => unreachable!("looked up before"),
        }
    }

    fn node_mut(&mut self, node: usize) -> &mut Node {
        Rc::make_mut(&mut self.nodes[node])
    }

    fn parent(&self, path: &Path) -> Result<usize, Errno> {
        let mut at = 0;
        for name in &path[..path.len() - 1] {
            at = *self.directory(at)?.get(name).ok_or(Errno::NotFound)?;
        }
        self.directory(at)?;
        Ok(at)
    }

    fn find(&self, path: &Path) -> Result<usize, Errno> {
        let parent = self.parent(path)?;
        self.directory(parent)?
            .get(path.last().unwrap())
            .copied()
            .ok_or(Errno::NotFound)
    }

    /// Whether a path leads through a symbolic link, which the kernel follows.
    pub fn leads_through_link(&self, path: &Path) -> bool {
        (1..path.len()).any(|end| {
            self.find(&path[..end].to_vec())
                .is_ok_and(|node| matches!(self.nodes[node].contents, Contents::Symlink(_)))
        })
    }

    /// Users' attributes are for files and directories.
    fn check_xattrs(&self, node: usize) -> Outcome {
        match self.nodes[node].contents {
            Contents::Symlink(_) => Err(Errno::NotPermitted),
            _ => Ok(()),
        }
    }

    /// Whether there is a file at a path.
    pub fn is_file(&self, path: &Path) -> bool {
        self.find(path)
            .is_ok_and(|node| matches!(self.nodes[node].contents, Contents::File(_)))
    }

    fn file(&mut self, path: &Path) -> Result<&mut Vec<u8>, Errno> {
        let node = self.find(path)?;
        let done = self.done;
        match self.node_mut(node) {
            Node {
                contents: Contents::File(data),
                changed,
                ..
            } => {
                *changed = done;
                Ok(data)
            }
            Node {
                contents: Contents::Directory(_),
                ..
            } => Err(Errno::IsADirectory),
            _ => Err(Errno::Invalid),
        }
    }

    fn add(&mut self, path: &Path, contents: Contents, permissions: u16) -> Outcome {
        let parent = self.parent(path)?;
        let name = path.last().unwrap();
        if self.directory(parent)?.contains_key(name) {
            return Err(Errno::Exists);
        }
        let xattrs = BTreeMap::new();
        let changed = self.done;
        self.nodes.push(Rc::new(Node {
            contents,
            permissions,
            xattrs,
            changed,
        }));
        let node = self.nodes.len() - 1;
        self.directory_mut(parent).insert(name.clone(), node);
        Ok(())
    }

    fn is_within(&self, node: usize, ancestor: usize) -> bool {
        node == ancestor
            || self
                .directory(ancestor)
                .is_ok_and(|names| names.values().any(|&child| self.is_within(node, child)))
    }

    fn rename(&mut self, old: &Path, new: &Path, how: Rename) -> Outcome {
        let old_parent = self.parent(old)?;
        let (old_name, new_name) = (old.last().unwrap(), new.last().unwrap());
        let node = *self
            .directory(old_parent)?
            .get(old_name)
            .ok_or(Errno::NotFound)?;
        let new_parent = self.parent(new)?;
        let target = self.directory(new_parent)?.get(new_name).copied();
        let is_directory = self.directory(node).is_ok();
        if is_directory && self.is_within(new_parent, node) {
            return Err(Errno::Invalid);
        }
        match (how, target) {
            (Rename::NoReplace, Some(_)) => return Err(Errno::Exists),
            (Rename::Exchange, None) => return Err(Errno::NotFound),
            (Rename::Exchange, Some(target)) => {
                if self.directory(target).is_ok() && self.is_within(old_parent, target) {
                    return Err(Errno::Invalid);
                }
                self.directory_mut(new_parent)
                    .insert(new_name.clone(), node);
                self.directory_mut(old_parent)
                    .insert(old_name.clone(), target);
                return Ok(());
            }
            (Rename::Replace, Some(target)) if target == node => return Ok(()),
            (Rename::Replace, Some(target)) => match (is_directory, self.directory(target)) {
                (false, Ok(_)) => return Err(Errno::IsADirectory),
                (true, Err(_)) => return Err(Errno::NotADirectory),
                (true, Ok(names)) if !names.is_empty() => return Err(Errno::NotEmpty),
                _ => {}
            },
            _ => {}
        }
        self.directory_mut(old_parent).remove(old_name);
        self.directory_mut(new_parent)
            .insert(new_name.clone(), node);
        Ok(())
    }

    /// Does an operation.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.done += 1;
        match op {
            Op::Create(path) => self.add(path, Contents::File(Vec::new()), 0o644),
            Op::Mkdir(path) => self.add(path, Contents::Directory(BTreeMap::new()), 0o755),
            Op::Symlink(path, target) => self.add(path, Contents::Symlink(target.clone()), 0o777),
            Op::Write {
                path,
                offset,
                length,
                byte,
            } => {
                let data = self.file(path)?;
                let end = *offset as usize + length;
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[*offset as usize..end].fill(*byte);
                Ok(())
            }
            Op::Truncate(path, size) => {
                self.file(path)?.resize(*size as usize, 0);
                Ok(())
            }
            Op::Allocate(path, offset, length) => {
                let data = self.file(path)?;
                let end = (offset + length) as usize;
                if data.len() < end {
                    data.resize(end, 0);
                }
                Ok(())
            }
            Op::Punch(path, offset, length) | Op::Zero(path, offset, length) => {
                let data = self.file(path)?;
                let end = data.len().min((offset + length) as usize);
                if let Some(range) = data.get_mut(*offset as usize..end) {
                    range.fill(0);
                }
                Ok(())
            }
            Op::Link(path, new) => {
                let node = self.find(path)?;
                let parent = self.parent(new)?;
                if self.directory(parent)?.contains_key(new.last().unwrap()) {
                    return Err(Errno::Exists);
                }
                if self.directory(node).is_ok() {
                    return Err(Errno::NotPermitted);
                }
                let done = self.done;
                self.node_mut(node).changed = done;
                self.directory_mut(parent)
                    .insert(new.last().unwrap().clone(), node);
                Ok(())
            }
            Op::Unlink(path) => {
                let node = self.find(path)?;
                if self.directory(node).is_ok() {
                    return Err(Errno::IsADirectory);
                }
                let parent = self.parent(path)?;
                let done = self.done;
                self.node_mut(node).changed = done;
                self.directory_mut(parent).remove(path.last().unwrap());
                Ok(())
            }
            Op::Rmdir(path) => {
                let node = self.find(path)?;
                if !self.directory(node)?.is_empty() {
                    return Err(Errno::NotEmpty);
                }
                let parent = self.parent(path)?;
                self.directory_mut(parent).remove(path.last().unwrap());
                Ok(())
            }
            Op::Rename(old, new, how) => self.rename(old, new, *how),
            Op::Chmod(path, permissions) => {
                let node = self.find(path)?;
                self.node_mut(node).permissions = *permissions;
                let done = self.done;
                self.node_mut(node).changed = done;
                Ok(())
            }
            Op::SetXattr(path, name, value) => {
                let node = self.find(path)?;
                self.check_xattrs(node)?;
                self.node_mut(node)
                    .xattrs
                    .insert(name.clone(), value.clone());
                let done = self.done;
                self.node_mut(node).changed = done;
                Ok(())
            }
            Op::RemoveXattr(path, name) => {
                let node = self.find(path)?;
                self.check_xattrs(node)?;
                let done = self.done;
                self.node_mut(node).changed = done;
                self.node_mut(node)
                    .xattrs
                    .remove(name)
                    .map(|_| ())
                    .ok_or(Errno::NoAttribute)
            }
            Op::Sync => Ok(()),
        }
    }

    /// All paths with a number that is the same for links to one inode, and the operation that
    /// changed it last.
    fn walk(&self) -> Vec<(String, usize)> {
        let mut found = Vec::new();
        let mut rest = vec![(String::new(), 0)];
        while let Some((prefix, node)) = rest.pop() {
            if let Ok(names) = self.directory(node) {
                rest.extend(
                    names
                        .iter()
                        .map(|(name, &child)| (format!("{prefix}/{name}"), child)),
                );
            }
            found.push((prefix, node));
        }
        found.sort();
        found
    }

    /// Names and types, as text.
    pub fn shape(&self) -> String {
        let mut numbers = BTreeMap::new();
        self.walk()
            .into_iter()
            .map(|(path, node)| {
                let next = numbers.len();
                let number = *numbers.entry(node).or_insert(next);
                let kind = match &self.nodes[node].contents {
                    Contents::File(_) => 'f',
                    Contents::Directory(_) => 'd',
                    Contents::Symlink(_) => 'l',
                };
                format!("{kind} {number} {path}\n")
            })
            .collect()
    }

    /// All paths to inodes that no operation after `since` changed, with a number for each.
    pub fn places(&self, since: usize) -> BTreeMap<String, usize> {
        let untouched = |(_, node): &(String, usize)| self.nodes[*node].changed <= since;
        self.walk().into_iter().filter(untouched).collect()
    }

    /// What must be found of every inode that no operation after `since` changed.
    pub fn unchanged(&self, since: usize) -> BTreeMap<String, String> {
        self.walk()
            .into_iter()
            .filter(|(_, node)| self.nodes[*node].changed <= since)
            .map(|(path, node)| (path, self.describe(node)))
            .collect()
    }

    fn describe(&self, node: usize) -> String {
        let Node {
            contents,
            permissions,
            xattrs,
            ..
        } = &*self.nodes[node];
        let contents = match contents {
            Contents::File(data) => summary(data),
            Contents::Directory(names) => names
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(","),
            Contents::Symlink(target) => target.clone(),
        };
        let xattrs: Vec<String> = xattrs
            .iter()
            .map(|(name, value)| format!("{name}={}", summary(value)))
            .collect();
        format!("{permissions:o} {xattrs:?} {contents}")
    }
}

/// Bytes as runs.
pub fn summary(bytes: &[u8]) -> String {
    bytes
        .chunk_by(|a, b| a == b)
        .map(|run| format!("{}x{:x};", run.len(), run[0]))
        .collect()
}

fn walk_to<D: BlockDevice>(filesystem: &mut Ext4<D>, path: &[String]) -> Result<Ino, Errno> {
    let mut at = ROOT;
    for name in path {
        at = filesystem
            .lookup(at, name.as_bytes())
            .map_err(|error| error.errno())?;
    }
    Ok(at)
}

/// Does an operation on a filesystem.
pub fn apply<D: BlockDevice>(filesystem: &mut Ext4<D>, op: &Op) -> Outcome {
    let owner = Owner {
        permissions: 0o644,
        uid: 1,
        gid: 2,
    };
    let directory = Owner {
        permissions: 0o755,
        ..owner
    };
    let fs = filesystem;
    fn split(path: &Path) -> (&[String], &[u8]) {
        let (name, parents) = path.split_last().unwrap();
        (parents, name.as_bytes())
    }
    let result = match op {
        Op::Create(path) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.create(parent, name, owner).map(|_| ())
        }
        Op::Mkdir(path) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.mkdir(parent, name, directory).map(|_| ())
        }
        Op::Symlink(path, target) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.symlink(parent, name, target.as_bytes(), owner)
                .map(|_| ())
        }
        Op::Write {
            path,
            offset,
            length,
            byte,
        } => {
            let ino = walk_to(fs, path)?;
            fs.write(ino, *offset, &vec![*byte; *length])
                .map(|count| assert_eq!(count, *length))
        }
        Op::Truncate(path, size) => {
            let ino = walk_to(fs, path)?;
            fs.truncate(ino, *size)
        }
        Op::Allocate(path, offset, length) => {
            let ino = walk_to(fs, path)?;
            fs.fallocate(
                ino,
                Fallocate::Allocate { keep_size: false },
                *offset,
                *length,
            )
        }
        Op::Punch(path, offset, length) => {
            let ino = walk_to(fs, path)?;
            fs.fallocate(ino, Fallocate::PunchHole, *offset, *length)
        }
        Op::Zero(path, offset, length) => {
            let ino = walk_to(fs, path)?;
            fs.fallocate(
                ino,
                Fallocate::ZeroRange { keep_size: true },
                *offset,
                *length,
            )
        }
        Op::Link(path, new) => {
            let ino = walk_to(fs, path)?;
            let (parents, name) = split(new);
            let parent = walk_to(fs, parents)?;
            fs.link(ino, parent, name)
        }
        Op::Unlink(path) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.unlink(parent, name)
        }
        Op::Rmdir(path) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.rmdir(parent, name)
        }
        Op::Rename(old, new, how) => {
            let (old_parents, old_name) = split(old);
            let (new_parents, new_name) = split(new);
            let old_parent = walk_to(fs, old_parents)?;
            fs.lookup(old_parent, old_name)
                .map_err(|error| error.errno())?;
            let new_parent = walk_to(fs, new_parents)?;
            fs.rename(old_parent, old_name, new_parent, new_name, *how)
        }
        Op::Chmod(path, permissions) => {
            let ino = walk_to(fs, path)?;
            let permissions = Some(*permissions);
            fs.set_attributes(
                ino,
                &SetAttributes {
                    permissions,
                    ..SetAttributes::default()
                },
            )
        }
        Op::SetXattr(path, name, value) => {
            let ino = walk_to(fs, path)?;
            fs.set_xattr(ino, name.as_bytes(), value, SetXattr::Any)
        }
        Op::RemoveXattr(path, name) => {
            let ino = walk_to(fs, path)?;
            fs.remove_xattr(ino, name.as_bytes())
        }
        Op::Sync => fs.sync(),
    };
    result.map_err(|error| error.errno())
}

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

/// Names and types of a filesystem, as [`Model::shape`] has them.
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

/// Every inode of a filesystem, as [`Model::unchanged`] has them.
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

/// Both say the same of whatever `expected` speaks of.
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
