//! Paths, name by name, with symbolic links followed as Linux follows them.

/// As many symbolic links as Linux follows.
const LINKS: usize = 40;

/// More symbolic links are on a path than Linux follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop;

/// A path that is being followed, through places of type `P`.
pub(crate) struct Way<P> {
    /// Names that are still to be looked up, the next one last.
    names: Vec<Vec<u8>>,
    /// Where the way leads so far, above all the place where it is now. The root is never left.
    places: (P, Vec<P>),
    links: usize,
}

impl<P: Clone> Way<P> {
    /// A way from `root` along `path`.
    pub(crate) fn new(root: P, path: &[u8]) -> Self {
        Self {
            names: names(path).collect(),
            places: (root, Vec::new()),
            links: 0,
        }
    }

    /// Where the way is.
    pub(crate) fn place(&self) -> &P {
        self.places.1.last().unwrap_or(&self.places.0)
    }

    /// The next name to look up in [`Way::place`]; none at the end. `..` leads back by itself.
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

    /// Whether the name looked up last was the path's last one, which may be anything; all
    /// others must be directories.
    pub(crate) fn is_last(&self) -> bool {
        self.names.is_empty()
    }

    /// That name is a directory.
    pub(crate) fn enter(&mut self, place: P) {
        self.places.1.push(place);
    }

    /// That name is a symbolic link, which leads to `target`.
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

/// The names in a path, the last one first. At the end `.` stays, also for a slash: what is
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

/// The path of a parent and the last name; `None` for a path that ends in no name.
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
