//! Computes the expected results of operations.

use std::collections::BTreeMap;
use std::rc::Rc;

use micabox_ext4::{Errno, Rename};

use super::{Op, Outcome, Path, summary};

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
    /// Shared with the copies of earlier states.
    nodes: Vec<Rc<Node>>,
    /// Number of operations done.
    pub done: usize,
}

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

    /// Whether a path contains a symbolic link, which the kernel follows.
    pub fn leads_through_link(&self, path: &Path) -> bool {
        (1..path.len()).any(|end| {
            self.find(&path[..end].to_vec())
                .is_ok_and(|node| matches!(self.nodes[node].contents, Contents::Symlink(_)))
        })
    }

    /// Checks that users' attributes are only set on files and directories.
    fn check_xattrs(&self, node: usize) -> Outcome {
        match self.nodes[node].contents {
            Contents::Symlink(_) => Err(Errno::NotPermitted),
            _ => Ok(()),
        }
    }

    /// Whether a path is that of a file.
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

    /// Performs an operation.
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

    /// Returns all paths with a number that is the same for links to one inode, and the operation
    /// that changed the inode last.
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

    /// Returns names and types, as text.
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

    /// Returns all paths to inodes that no operation after `since` changed, with a number for each.
    pub fn places(&self, since: usize) -> BTreeMap<String, usize> {
        let untouched = |(_, node): &(String, usize)| self.nodes[*node].changed <= since;
        self.walk().into_iter().filter(untouched).collect()
    }

    /// Returns the expected description of every inode that no operation after `since` changed.
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
