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
