//! Hard links, also to files that come later or are in a lower layer.

use std::collections::HashMap;
use std::io::{Seek, Write};

use micabox_erofs::{InodeId, overlay};
use micabox_tar::{printable, whiteout};

use super::paths::Found;
use super::{Entry, LayerTree, Problem};
use crate::convert::error::Reason;
use crate::convert::path::components;

/// Hard links whose target is missing so far: it comes later, or is in a lower layer.
#[derive(Default)]
pub(super) struct PendingLinks {
    /// Directory, name and the inode that stands in for the target.
    names: Vec<(InodeId, Box<[u8]>, InodeId)>,
    /// The target of each stand-in.
    targets: HashMap<InodeId, Box<[u8]>>,
}

impl<W: Write + Seek> LayerTree<W> {
    pub(super) fn add_hard_link(
        &mut self,
        directory: InodeId,
        name: &[u8],
        entry: Entry<'_>,
    ) -> Result<(), Problem> {
        let link_target =
            |problem| Problem::LinkTarget(printable(entry.member.kind.target()), problem);
        let target =
            components(entry.member.kind.target(), self.limits.path_depth).map_err(link_target)?;
        if let [whiteout::AUFS_LINKS, link] = target[..]
            && let Some(&inode) = self.aufs_links.get(link)
        {
            return self.link(directory, name, inode);
        }
        match self.find(&target)? {
            Found::Inode(inode) if self.writer.tree().inode(inode).is_directory() => Err(
                Problem::LinkToDirectory(printable(entry.member.kind.target())),
            ),
            Found::Inode(inode) => {
                if self.links.targets.contains_key(&inode) {
                    self.links.names.push((directory, name.into(), inode));
                }
                self.link(directory, name, inode)
            }
            Found::Missing(target) => {
                let (metadata, kind) = overlay::link_to_lower(self.metadata(entry)?, &target);
                let inode = self.writer.tree().add(metadata, kind);
                self.links.names.push((directory, name.into(), inode));
                self.links.targets.insert(inode, target);
                self.link(directory, name, inode)
            }
        }
    }

    /// Resolves hard links whose targets came after them. Those whose target never came remain
    /// links into a lower layer.
    pub(super) fn resolve_links(&mut self) -> Result<(), Reason> {
        let links = std::mem::take(&mut self.links);
        let mut resolved = HashMap::new();
        for (directory, name, stand_in) in &links.names {
            let replaced = self.writer.tree().lookup(*directory, name) != Some(*stand_in);
            if replaced || !self.is_in_layer(*directory) {
                continue; // Another entry has the name by now, or replaced a directory above it.
            }
            self.resolve_link(&links, *stand_in, &mut resolved)
                .and_then(|inode| {
                    if self.writer.tree().inode(inode).is_directory() {
                        let target = printable(&links.targets[stand_in]);
                        Err(Problem::LinkToDirectory(target))
                    } else {
                        self.link(*directory, name, inode)
                    }
                })
                .map_err(|problem| self.reason(name, problem))?;
        }
        Ok(())
    }

    /// Returns whether a directory is still part of the tree.
    fn is_in_layer(&mut self, mut directory: InodeId) -> bool {
        let tree = self.writer.tree();
        while let Some(parent) = tree.parent(directory) {
            directory = parent;
        }
        directory == tree.root()
    }

    /// Returns the inode at the end of a chain of links to links. `resolved` caches the end of
    /// every chain, so that following all of them takes time in proportion to their number.
    fn resolve_link(
        &mut self,
        links: &PendingLinks,
        from: InodeId,
        resolved: &mut HashMap<InodeId, InodeId>,
    ) -> Result<InodeId, Problem> {
        let mut chain = vec![from];
        let mut places = HashMap::from([(from, 0)]);
        let mut end = from;
        while let Some(target) = links.targets.get(&end) {
            if let Some(&known) = resolved.get(&end) {
                end = known;
                break;
            }
            let path = components(target, self.limits.path_depth)?;
            let Found::Inode(next) = self.find(&path)? else {
                break;
            };
            if let Some(&place) = places.get(&next) {
                // A cycle: a lower layer has the file that its first link refers to.
                end = chain[place..].iter().copied().min().unwrap_or(next);
                break;
            }
            places.insert(next, chain.len());
            chain.push(next);
            end = next;
        }
        resolved.extend(chain.into_iter().map(|inode| (inode, end)));
        Ok(end)
    }
}
