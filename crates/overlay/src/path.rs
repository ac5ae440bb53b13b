//! Resolves paths, name by name, with symbolic links followed as by Linux.

/// Most symbolic links in a path, as in Linux.
const LINKS: usize = 40;

/// A path has more symbolic links than Linux follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop;

/// A path that is being resolved, through directories of type `P`.
pub(crate) struct Way<P> {
    /// Names that are still to be looked up, the next one last.
    names: Vec<Vec<u8>>,
    /// The root, and the directories below it on the way, the current one last. `..` never leaves
    /// the root.
    places: (P, Vec<P>),
    links: usize,
}

impl<P: Clone> Way<P> {
    /// Starts at `root` with `path`.
    pub(crate) fn new(root: P, path: &[u8]) -> Self {
        Self {
            names: names(path).collect(),
            places: (root, Vec::new()),
            links: 0,
        }
    }

    /// Returns the current directory.
    pub(crate) fn place(&self) -> &P {
        self.places.1.last().unwrap_or(&self.places.0)
    }

    /// Returns the next name to look up in [`Way::place`]; `None` at the end. Handles `..` itself.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let name = self.names.pop()?;
            match &*name {
                b"." => {}
                b".." => drop(self.places.1.pop()),
                _ => return Some(name),
            }
        }
    }

    /// Returns whether the name looked up last is the path's last one, which may be any file; all
    /// others must be directories.
    pub(crate) fn is_last(&self) -> bool {
        self.names.is_empty()
    }

    /// Enters the directory at the last name.
    pub(crate) fn enter(&mut self, place: P) {
        self.places.1.push(place);
    }

    /// Follows the symbolic link at the last name, which leads to `target`.
    pub(crate) fn follow(&mut self, target: &[u8]) -> Result<(), Loop> {
        self.links += 1;
        if self.links > LINKS {
            return Err(Loop);
        }
        if target.starts_with(b"/") {
            self.places.1.clear();
        }
        self.names.extend(names(target));
        Ok(())
    }
}

/// Returns where a path leads whose last name is a symbolic link, or a chain of them: a path whose last name is
/// none. A link that dangles leads to where its file would be; so does a slash at the end, which stays.
/// `target` returns what the link at a path says, without following it, and none of anything else. A chain
/// that is too long is left where it is.
///
/// # Errors
/// Those of `target`.
pub fn through_links<E>(
    path: &[u8],
    mut target: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>, E>,
) -> Result<Vec<u8>, E> {
    let end = path.iter().rposition(|byte| *byte != b'/');
    let (name, slashes) = path.split_at(end.map_or(path.len(), |end| end + 1));
    let mut at = name.to_vec();
    for _ in 0..=LINKS {
        let Some(link) = target(&at)? else {
            at.extend_from_slice(slashes);
            return Ok(at);
        };
        if link.starts_with(b"/") {
            at.clear();
        } else {
            let parent = at.iter().rposition(|byte| *byte == b'/');
            at.truncate(parent.map_or(0, |slash| slash + 1));
        }
        at.extend_from_slice(&link);
    }
    Ok(path.to_vec())
}

/// Returns the names in a path, last one first. A `.` or slash at the end yields `.`: the name
/// before it must be a directory.
fn names(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut names = path.rsplit(|byte| *byte == b'/');
    let end = match names.next() {
        None | Some(b"" | b".") => b".",
        Some(name) => name,
    };
    let rest = names.filter(|name| !name.is_empty() && *name != b".");
    [end].into_iter().chain(rest).map(<[u8]>::to_vec)
}

/// Splits a path into its parent and its last name; `None` if it ends without a name.
pub(crate) fn parent_and_name(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let path = path.get(..end)?;
    let start = path
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    let (parent, name) = path.split_at_checked(start)?;
    (name != b"." && name != b"..").then_some((parent, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_at_a_paths_end_are_followed_to_where_nothing_is() {
        let links = [
            ("/c/link", "file"),
            ("/c/dangling", "/c/later"),
            ("/c/up", "../d/chain"),
            ("/c/../d/chain", "link"),
            ("/loop", "loop"),
            ("link", "/c/link"),
        ];
        let follow = |path: &str| {
            let found = through_links(path.as_bytes(), |path| {
                let mut links = links.iter();
                let found = links.find(|(link, _)| link.as_bytes() == path);
                Ok::<_, ()>(found.map(|(_, target)| target.as_bytes().to_vec()))
            });
            String::from_utf8(found.unwrap()).unwrap()
        };
        for (path, leads_to) in [
            ("/c/link", "/c/file"),
            ("/c/link//", "/c/file//"),
            ("/c/link/.", "/c/link/."),
            ("/c/dangling", "/c/later"),
            ("/c/up", "/c/../d/link"),
            ("/loop", "/loop"),
            ("link", "/c/file"),
            ("/c/none", "/c/none"),
            ("/", "/"),
            ("", ""),
        ] {
            assert_eq!(follow(path), leads_to, "{path}");
        }
    }
}
