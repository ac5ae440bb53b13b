//! Pass 2: checks the entries of every directory.

use alloc::vec::Vec;
use core::mem;

use hashbrown::{HashMap, HashSet};

use super::htree::{self, Part};
use super::inode::Kind;
use super::special::quota_inodes;
use super::state::{Directory, State};
use super::volume::buffer;
use crate::format::directory::{self, ENTRY_HEADER, FileType, decode_length, entry_size, has_tail};
use crate::format::features::{compat, incompat};
use crate::format::fields;
use crate::format::inode::flags;
use crate::format::superblock::ROOT_INODE;

/// Length in bytes of the shortest name in an encrypted directory.
const ENCRYPTED_NAME_MIN: usize = 16;

/// The names of the first two entries.
const DOTS: [&[u8]; 2] = [b".", b".."];

/// Checks all directories.
pub(super) fn scan(state: &mut State) {
    let directories = mem::take(&mut state.directories);
    for directory in &directories {
        if state.found.is_full() {
            break;
        }
        scan_one(state, directory);
    }
    state.directories = directories;
}

fn scan_one(state: &mut State, directory: &Directory) {
    let number = directory.number;
    let mut names = HashSet::new();
    if let Some([first, rest]) = &directory.inline {
        inline(state, directory, first, rest, &mut names);
        return;
    }
    let volume = state.volume;
    let indexed =
        directory.flags & flags::INDEX != 0 && volume.superblock.has_compat(compat::DIR_INDEX);
    let parts = if indexed {
        htree::walk(state, directory)
    } else {
        HashMap::new()
    };
    let mut next = 0;
    let mut block = buffer(volume);
    for run in &directory.runs {
        if run.logical > next {
            let what = format_args!("has an unallocated block #{next}");
            state.found.inode(number, what);
        }
        if !run.written {
            state
                .found
                .inode(number, "directory has uninitialized extents");
        }
        next = run.logical + run.length;
        for index in 0..run.length {
            let logical = run.logical + index;
            let physical = run.physical + index;
            if state.is_fixed(physical) {
                // The conflict with the filesystem itself was reported before.
                continue;
            }
            // Directories that share blocks could hold any number of names.
            if !state.visited.insert(physical) {
                let what = format_args!("directory block {physical} is multiply claimed");
                state.found.inode(number, what);
                continue;
            }
            if let Err(problem) = volume.read_block(physical, &mut block) {
                state.found.inode(number, problem);
                continue;
            }
            let part = parts.get(&logical).copied();
            scan_block(state, directory, logical, &block, part, &mut names);
            if state.found.is_full() {
                return;
            }
        }
    }
    if directory.runs.is_empty() {
        missing_dots(state, number, [false, false]);
    }
}

/// Checks a block of entries.
fn scan_block(
    state: &mut State,
    directory: &Directory,
    logical: u64,
    block: &[u8],
    part: Option<Part>,
    names: &mut HashSet<Vec<u8>>,
) {
    let volume = state.volume;
    let number = directory.number;
    let node = matches!(part, Some(Part::Root | Part::Node));
    if volume.has_checksums() && !node {
        let problem = if !has_tail(block) {
            Some("directory has no checksum")
        } else if directory::checksum_of(directory.seed, block)
            != fields::get::<u32>(block, block.len().saturating_sub(4))
        {
            Some("directory passes checks but fails checksum")
        } else {
            None
        };
        if let Some(problem) = problem {
            let what = format_args!("directory block #{logical}: {problem}");
            state.found.inode(number, what);
        }
    }
    if part == Some(Part::Node) {
        return;
    }
    let mut range = None;
    let mut dots = [false, false];
    let mut at = 0;
    let mut index = 0;
    while at < block.len() {
        let Some(entry) = Entry::read(block, at) else {
            let what = format_args!(
                "directory inode {number}, block #{logical}, offset {at}: directory corrupted"
            );
            state.found.inode(number, what);
            break;
        };
        // `.` and `..` are the first two of the first block.
        let dot = (logical == 0 && index < 2).then_some(index);
        if let Some((seen, name)) = dot.and_then(|dot| dots.get_mut(dot).zip(DOTS.get(dot))) {
            *seen = entry.name == *name && entry.inode != 0;
            if *seen && block.get(at + ENTRY_HEADER + name.len()) != Some(&0) {
                let name = name.escape_ascii();
                let what = format_args!("'{name}' is not NULL terminated");
                state.found.inode(number, what);
            }
        }
        let tail = at + entry.length == block.len() && entry.is_tail();
        if entry.inode != 0 && !tail {
            visit(state, directory, &entry, dot, names);
            if dot.is_none() {
                let hash = htree::hash_of(volume, directory, part, entry.name);
                htree::extend(&mut range, hash);
            }
        }
        at += entry.length;
        index += 1;
    }
    if logical == 0 {
        missing_dots(state, number, dots);
    }
    if let (Some(Part::Leaf { from, to, .. }), Some((least, most))) = (part, range) {
        // An odd end means that the next block continues with the same hash.
        let limit = if to & 1 == 1 {
            to
        } else {
            to.saturating_sub(1)
        };
        for (wrong, which) in [(least < from & !1, "min"), (most > limit, "max")] {
            if wrong {
                let what = format_args!("HTREE directory: block #{logical} has bad {which} hash");
                state.found.inode(number, what);
            }
        }
    }
}

fn missing_dots(state: &mut State, number: u32, dots: [bool; 2]) {
    for (there, name) in dots.into_iter().zip(DOTS) {
        if !there {
            let name = name.escape_ascii();
            state
                .found
                .inode(number, format_args!("missing '{name}' in directory"));
        }
    }
}

/// Checks an inline directory: the parent's number, then entries, and more entries in an attribute.
fn inline(
    state: &mut State,
    directory: &Directory,
    first: &[u8],
    rest: &[u8],
    names: &mut HashSet<Vec<u8>>,
) {
    let parent = fields::get(first, 0);
    state.dotdots.insert(directory.number, parent);
    count(state, directory.number);
    count(state, parent);
    for entries in [first.get(4..).unwrap_or_default(), rest] {
        let mut at = 0;
        while at < entries.len() {
            let Some(entry) = Entry::read(entries, at) else {
                let what = format_args!("block #0, offset {at}: directory corrupted");
                state.found.inode(directory.number, what);
                break;
            };
            if entry.inode != 0 {
                visit(state, directory, &entry, None, names);
            }
            at += entry.length;
        }
    }
}

/// An entry with a valid length.
struct Entry<'b> {
    inode: u32,
    length: usize,
    file_type: u8,
    name: &'b [u8],
}

impl<'b> Entry<'b> {
    fn read(block: &'b [u8], at: usize) -> Option<Self> {
        let rest = block.get(at..)?;
        if rest.len() < ENTRY_HEADER {
            return None;
        }
        let length = decode_length(fields::get(rest, 4), block.len());
        let name_len = usize::from(fields::get::<u8>(rest, 6));
        let inode = fields::get(rest, 0);
        let fits = length >= entry_size(1)
            && length.is_multiple_of(4)
            && length <= rest.len()
            && entry_size(name_len) <= length;
        fits.then(|| Self {
            inode,
            length,
            file_type: fields::get(rest, 7),
            name: rest
                .get(ENTRY_HEADER..ENTRY_HEADER + name_len)
                .unwrap_or_default(),
        })
    }

    /// Whether the entry holds a block's checksum.
    fn is_tail(&self) -> bool {
        self.length == directory::TAIL_SIZE
            && self.file_type == directory::TAIL_FILE_TYPE
            && self.name.is_empty()
    }
}

/// Checks an entry, and counts the name for its inode.
fn visit(
    state: &mut State,
    directory: &Directory,
    entry: &Entry,
    dot: Option<usize>,
    names: &mut HashSet<Vec<u8>>,
) {
    let superblock = &state.volume.superblock;
    let (number, child) = (directory.number, entry.inode);
    let encrypted = directory.flags & flags::ENCRYPT != 0 && dot.is_none();
    let name = entry.name.escape_ascii();
    let mut problem = |what: &str| {
        let what = format_args!("entry '{name}' {what}");
        state.found.inode(number, what);
    };
    if entry.name.is_empty() {
        problem("is a zero-length name");
    } else if encrypted && entry.name.len() < ENCRYPTED_NAME_MIN {
        problem("is too short for an encrypted name");
    } else if !encrypted && entry.name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        problem("has illegal characters in its name");
    }
    if dot.is_none() {
        if matches!(entry.name, b"." | b"..") {
            problem("is duplicate");
        }
        if !names.insert(entry.name.to_vec()) {
            problem("has a non-unique filename");
        }
    }
    let types = superblock.has_incompat(incompat::FILETYPE);
    if !types && entry.file_type != 0 {
        problem("has filetype set");
    }
    let own = child == superblock.orphan_file_inode || quota_inodes(superblock).contains(&child);
    let reserved = own || child < superblock.first_file_inode() && child != ROOT_INODE;
    if reserved || child > superblock.inodes_count {
        problem("has invalid inode number");
        return;
    }
    let Some(seen) = state.seen.get(&child) else {
        problem("has deleted/unused inode");
        return;
    };
    if seen.flags & flags::EA_INODE != 0 && superblock.has_incompat(incompat::EA_INODE) {
        problem("references an extended attribute inode");
    }
    let right = seen.kind.map_or(FileType::Unknown, Kind::file_type);
    // Linux takes the type from the inode, and e2fsck adds it without a message.
    let left_out = entry.file_type == 0;
    if types && !left_out && FileType::from_byte(entry.file_type) != right && seen.kind.is_some() {
        problem("has an incorrect filetype");
    }
    let child_is_directory = seen.kind == Some(Kind::Directory);
    match dot {
        Some(0) if child != number => problem("has an invalid inode number for '.'"),
        Some(0) => {}
        Some(_) => {
            state.dotdots.insert(number, child);
        }
        None if child == ROOT_INODE => problem("is a link to the root inode"),
        None if child_is_directory => {
            if state.parents.contains_key(&child) {
                problem("is a link to a directory that has a name already");
            } else {
                state.parents.insert(child, number);
            }
        }
        None => {}
    }
    count(state, child);
}

/// Counts one more name of an inode.
fn count(state: &mut State, number: u32) {
    if let Some(seen) = state.seen.get_mut(&number) {
        seen.counted = seen.counted.saturating_add(1);
    }
}
