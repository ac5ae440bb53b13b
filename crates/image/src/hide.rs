//! Removes the names in a tree that patterns match.

use micabox_erofs::{InodeId, Kind, Tree};
use serde::{Deserialize, Serialize};

use micabox_oci::Trim;

/// What a view lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hidden {
    /// Number of names other than those of directories.
    pub files: u64,
    /// Length of the files that have no name left, in bytes.
    pub bytes: u64,
}

/// What happens to what is below a directory, unless a pattern says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Below {
    Stays,
    /// Directories stay.
    IsEmptied,
    Goes,
}

/// A directory to look through, with the rests of the patterns that may match below.
struct Visit<'p> {
    directory: InodeId,
    below: Below,
    hides: Vec<&'p str>,
    keeps: Vec<&'p str>,
}

/// What patterns say about one name.
struct Matches<'p> {
    /// Whether one ends with it.
    ended: bool,
    /// Whether one goes on with nothing but `**`.
    files_below: bool,
    /// What else is left of those that match it.
    rests: Vec<&'p str>,
}

impl<'p> Matches<'p> {
    fn of(patterns: &[&'p str], name: &[u8]) -> Self {
        let mut matches = Self {
            ended: false,
            files_below: false,
            rests: Vec::new(),
        };
        for pattern in patterns {
            let (component, rest) = match pattern.split_once('/') {
                Some((component, rest)) => (component, Some(rest)),
                None => (*pattern, None),
            };
            if !is_match(component.as_bytes(), name) {
                continue;
            }
            match rest {
                None => matches.ended = true,
                Some("**") => matches.files_below = true,
                Some(rest) => matches.rests.push(rest),
            }
        }
        matches
    }
}

/// Removes what `trim` names from the tree.
pub(crate) fn hide(tree: &mut Tree, trim: &Trim) -> Hidden {
    let mut hidden = Hidden::default();
    let patterns = |is_kept: bool| {
        trim.patterns()
            .filter(move |pattern| pattern.starts_with('!') == is_kept)
            .map(|pattern| pattern.trim_start_matches(['!', '/']))
    };
    let mut root = Visit {
        directory: tree.root(),
        below: Below::Stays,
        hides: patterns(false).collect(),
        keeps: patterns(true).collect(),
    };
    // `/**` has no component before.
    if root.hides.contains(&"**") {
        root.hides.retain(|pattern| *pattern != "**");
        root.below = Below::IsEmptied;
    }
    let mut pending = vec![root];
    // Directories that go unless something in them stays, each after the one that it is in.
    let mut undecided = Vec::new();
    while let Some(visit) = pending.pop() {
        let directory = visit.directory;
        let entries = tree.entries(directory).map(|(name, id)| (name.into(), id));
        for (name, id) in entries.collect::<Vec<(Box<[u8]>, _)>>() {
            let is_directory = tree.inode(id).is_directory();
            let keeps = Matches::of(&visit.keeps, &name);
            if keeps.ended || is_directory && keeps.files_below {
                continue;
            }
            let hides = Matches::of(&visit.hides, &name);
            let fate = match (hides.ended, hides.files_below) {
                (true, _) => Below::Goes,
                (false, true) if is_directory => visit.below.max(Below::IsEmptied),
                (false, _) => visit.below,
            };
            let stays_whole = fate == Below::Stays && hides.rests.is_empty();
            if stays_whole {
                continue;
            }
            if !is_directory {
                if fate != Below::Stays {
                    remove(tree, directory, &name, &mut hidden);
                }
                continue;
            }
            if fate == Below::Goes {
                if keeps.rests.is_empty() {
                    remove(tree, directory, &name, &mut hidden);
                    continue;
                }
                undecided.push((directory, name, id));
            }
            pending.push(Visit {
                directory: id,
                below: fate,
                hides: hides.rests,
                keeps: keeps.rests,
            });
        }
    }
    for (directory, name, id) in undecided.into_iter().rev() {
        if tree.entries(id).next().is_none() {
            tree.unlink(directory, &name);
        }
    }
    hidden
}

/// Removes a name with everything below, so that the link counts of files with other names are right.
fn remove(tree: &mut Tree, directory: InodeId, name: &[u8], hidden: &mut Hidden) {
    let mut pending: Vec<(InodeId, Box<[u8]>)> = vec![(directory, name.into())];
    while let Some((directory, name)) = pending.pop() {
        let Some(id) = tree.unlink(directory, &name) else {
            continue;
        };
        let inode = tree.inode(id);
        if !inode.is_directory() {
            hidden.files += 1;
        }
        if let (Kind::File { size, .. }, 0) = (&inode.kind, inode.nlink) {
            hidden.bytes = hidden.bytes.saturating_add(*size);
        }
        pending.extend(tree.entries(id).map(|(name, _)| (id, name.into())));
    }
}

/// Returns whether a component of a pattern matches a name.
fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut next) = (0, 0);
    // Where the last `*` is, and the end of what it stands for.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(next) {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, next));
                at += 1;
            }
            Some(expected) if expected == byte => {
                at += 1;
                next += 1;
            }
            _ => {
                let Some((place, end)) = star else {
                    return false;
                };
                star = Some((place, end + 1));
                at = place + 1;
                next = end + 1;
            }
        }
    }
    pattern
        .get(at..)
        .is_none_or(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests {
    use micabox_erofs::{Metadata, Timestamp};

    use super::*;

    fn metadata() -> Metadata {
        Metadata {
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: Timestamp::default(),
            xattrs: Vec::new(),
        }
    }

    /// Makes a tree of these paths; those with a slash at the end are directories, and `a=b` is
    /// another name of `b`. Directories above are made. A file has 10 bytes.
    fn tree(paths: &[&str]) -> Tree {
        let mut tree = Tree::new(metadata());
        for path in paths {
            let (path, target) = match path.split_once('=') {
                Some((path, target)) => (path, Some(target)),
                None => (*path, None),
            };
            let mut directory = tree.root();
            let names: Vec<_> = path.split_inclusive('/').collect();
            for name in names {
                let below = name.strip_suffix('/');
                let name = below.unwrap_or(name).as_bytes();
                if let Some(found) = tree.lookup(directory, name) {
                    directory = found;
                    continue;
                }
                let id = match (below, target) {
                    (Some(_), _) => tree.add(metadata(), Kind::directory()),
                    (None, Some(target)) => find(&tree, target).unwrap(),
                    (None, None) => {
                        let Kind::File { data, .. } = Kind::EMPTY_FILE else {
                            unreachable!()
                        };
                        tree.add(metadata(), Kind::File { size: 10, data })
                    }
                };
                tree.link(directory, name, id).unwrap();
                directory = id;
            }
        }
        tree
    }

    fn find(tree: &Tree, path: &str) -> Option<InodeId> {
        path.split('/').try_fold(tree.root(), |directory, name| {
            tree.lookup(directory, name.as_bytes())
        })
    }

    /// Returns all paths, with a slash after those of directories.
    fn paths(tree: &Tree) -> Vec<String> {
        let mut paths = Vec::new();
        let mut pending = vec![(tree.root(), String::new())];
        while let Some((directory, above)) = pending.pop() {
            for (name, id) in tree.entries(directory) {
                let path = format!("{above}{}", String::from_utf8_lossy(name));
                if tree.inode(id).is_directory() {
                    paths.push(format!("{path}/"));
                    pending.push((id, format!("{path}/")));
                } else {
                    paths.push(path);
                }
            }
        }
        paths.sort();
        paths
    }

    #[test]
    fn a_star_stands_for_any_bytes_of_one_component() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", ".hidden", true),
            ("a*", "a", true),
            ("*a", "ba", true),
            ("*a", "bab", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYb", false),
            ("**", "x", true),
            ("*-old", "status-old", true),
            ("*-old", "status-old-", false),
        ] {
            let seen = is_match(pattern.as_bytes(), name.as_bytes());
            assert_eq!(seen, expected, "{pattern} {name}");
        }
        // Neither recursion nor a power of the pattern's length.
        let pattern = "*a".repeat(2000);
        assert!(!is_match(pattern.as_bytes(), "a".repeat(255).as_bytes()));
    }

    #[test]
    fn patterns_hide_and_keep_what_they_name() {
        const TREE: &[&str] = &[
            "a/b/c", "a/b/d/e", "a/f", "a/empty/", "g/b/c", "g/.b/c", "h",
        ];
        for (trim, left) in [
            (
                "/h",
                "a/ a/b/ a/b/c a/b/d/ a/b/d/e a/empty/ a/f g/ g/.b/ g/.b/c g/b/ g/b/c",
            ),
            ("/a,/no/such", "g/ g/.b/ g/.b/c g/b/ g/b/c h"),
            ("/a/*", "a/ g/ g/.b/ g/.b/c g/b/ g/b/c h"),
            (
                "/a/**",
                "a/ a/b/ a/b/d/ a/empty/ g/ g/.b/ g/.b/c g/b/ g/b/c h",
            ),
            ("/*/b", "a/ a/empty/ a/f g/ g/.b/ g/.b/c h"),
            ("/*/*b", "a/ a/empty/ a/f g/ h"),
            (
                "/*/*/c",
                "a/ a/b/ a/b/d/ a/b/d/e a/empty/ a/f g/ g/.b/ g/b/ h",
            ),
            ("/**", "a/ a/b/ a/b/d/ a/empty/ g/ g/.b/ g/b/"),
            ("/*,!/a/b/d", "a/ a/b/ a/b/d/ a/b/d/e"),
            ("/*,!/a/b/**", "a/ a/b/ a/b/c a/b/d/ a/b/d/e"),
            ("/*,!/*/nothing", ""),
            ("/*,!/*/b/c,/a/b/c", "a/ a/b/ a/b/c g/ g/b/ g/b/c"),
            ("/a,/a/**,!/a/f", "a/ a/f g/ g/.b/ g/.b/c g/b/ g/b/c h"),
            // A file is not a directory.
            (
                "/h/**,/h/x,/h,!/h/**",
                "a/ a/b/ a/b/c a/b/d/ a/b/d/e a/empty/ a/f g/ g/.b/ g/.b/c g/b/ g/b/c",
            ),
            ("/h/**,/h/x,/g,/a", "h"),
            (
                "!/a",
                "a/ a/b/ a/b/c a/b/d/ a/b/d/e a/empty/ a/f g/ g/.b/ g/.b/c g/b/ g/b/c h",
            ),
        ] {
            let mut tree = tree(TREE);
            hide(&mut tree, &trim.parse().unwrap());
            assert_eq!(paths(&tree).join(" "), left, "{trim}");
        }
    }

    #[test]
    fn other_names_of_a_hidden_file_stay_and_are_counted() {
        let mut tree = tree(&["a/x", "a/d/y=a/x", "b/z=a/x", "a/alone", "b/sub/"]);
        let hidden = hide(&mut tree, &"/a".parse().unwrap());
        assert_eq!(
            hidden,
            Hidden {
                files: 3,
                bytes: 10
            }
        );
        let nlink = |path| tree.inode(find(&tree, path).unwrap()).nlink;
        assert_eq!((nlink("b/z"), nlink("b")), (1, 3));
        assert_eq!(tree.inode(tree.root()).nlink, 3);
    }
}
