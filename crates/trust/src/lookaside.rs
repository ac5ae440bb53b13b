//! Where signatures of OpenPGP are kept: `registries.d`, a directory of files in YAML ([containers-registries.d(5)]).
//!
//! [containers-registries.d(5)]: https://github.com/containers/image/blob/main/docs/containers-registries.d.5.md

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use micabox_oci::{Reference, printable};
use saphyr_parser::{Event, Parser, ScalarStyle};

use crate::file::read_within;
use crate::policy::registry_names;

/// Largest file, in bytes, and how many things in it may be within each other.
const LARGEST: u64 = 1 << 20;
const DEEPEST: usize = 16;

/// Why it can't be told where signatures are. No image that needs one may be used then.
#[derive(Debug, thiserror::Error)]
pub enum LookasideError {
    /// A file or the directory can't be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file says nothing that can be used.
    #[error("{} is wrong: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// Where the signatures of images are, as a directory's files say together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lookaside {
    /// By scope, as policies have them.
    scopes: BTreeMap<String, String>,
    default: Option<String>,
}

impl Lookaside {
    /// Reads all files of a directory that end in `.yaml`. A missing directory says nothing.
    ///
    /// # Errors
    /// [`LookasideError`]; two files about the same scope are one, too.
    pub fn read(directory: &Path) -> Result<Self, LookasideError> {
        let failed = |source| LookasideError::Read {
            path: directory.to_owned(),
            source,
        };
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(error)),
        };
        let paths: Result<Vec<_>, _> = entries.map(|entry| Ok(entry?.path())).collect();
        let mut paths = paths.map_err(failed)?;
        paths.retain(|path| path.as_os_str().as_encoded_bytes().ends_with(b".yaml"));
        paths.sort();
        let mut all = Self::default();
        for path in paths {
            let invalid = |problem| LookasideError::Invalid {
                path: path.clone(),
                problem,
            };
            let text = match read_within(&path, LARGEST) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Err(invalid(format!("it has over {LARGEST} bytes"))),
                Err(source) => return Err(LookasideError::Read { path, source }),
            };
            let text = str::from_utf8(&text).map_err(|_| invalid("it is not UTF-8".to_owned()))?;
            let file = Self::parse(text).map_err(invalid)?;
            all.add(file).map_err(invalid)?;
        }
        Ok(all)
    }

    /// Returns the address below which an image's signatures are; none if that is nowhere said.
    #[must_use]
    pub fn of(&self, reference: &Reference) -> Option<&str> {
        let names = registry_names(reference);
        let scoped = names
            .iter()
            .find_map(|name| self.scopes.get(name).filter(|at| !at.is_empty()));
        let default = self.default.as_ref().filter(|at| !at.is_empty());
        scoped.or(default).map(String::as_str)
    }

    /// Adds what another file says, which must not be about the same scopes.
    fn add(&mut self, file: Self) -> Result<(), String> {
        let twice = |scope: &str| format!("another file has `{}` already", printable(scope));
        if file.default.is_some() {
            if self.default.is_some() {
                return Err(twice("default-docker"));
            }
            self.default = file.default;
        }
        for (scope, at) in file.scopes {
            if self.scopes.contains_key(&scope) {
                return Err(twice(&scope));
            }
            self.scopes.insert(scope, at);
        }
        Ok(())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut file = Self::default();
        for (name, value) in document(text)?.entries("the file")? {
            match &*name {
                "default-docker" => file.default = value.section(&name)?,
                "docker" => {
                    for (scope, value) in value.entries(&name)? {
                        let at = value.section(&scope)?.unwrap_or_default();
                        file.scopes.insert(scope, at);
                    }
                }
                _ => {}
            }
        }
        Ok(file)
    }
}

/// A part of a document in YAML, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    Nothing,
    Text(String),
    /// Names that are there once, in their order.
    Entries(Vec<(String, Node)>),
    List,
}

impl Node {
    fn entries(self, name: &str) -> Result<Vec<(String, Self)>, String> {
        match self {
            Self::Nothing => Ok(Vec::new()),
            Self::Entries(entries) => Ok(entries),
            Self::Text(_) | Self::List => Err(format!("`{}` has no names in it", printable(name))),
        }
    }

    /// Returns where a section says that signatures are; an empty text if it does not say, and none if there is no
    /// section.
    fn section(self, name: &str) -> Result<Option<String>, String> {
        if self == Self::Nothing {
            return Ok(None);
        }
        let (mut lookaside, mut older) = (String::new(), String::new());
        for (field, value) in self.entries(name)? {
            let text = match field.as_str() {
                "lookaside" => &mut lookaside,
                "sigstore" => &mut older,
                _ => continue,
            };
            *text = match value {
                Self::Nothing => String::new(),
                Self::Text(text) => text,
                Self::Entries(_) | Self::List => {
                    return Err(format!("`{field}` of `{}` is no address", printable(name)));
                }
            };
        }
        Ok(Some(if lookaside.is_empty() {
            older
        } else {
            lookaside
        }))
    }
}

/// Parses the first document of a text.
fn document(text: &str) -> Result<Node, String> {
    let mut events = Events(Parser::new_from_str(text));
    loop {
        match events.next()? {
            Event::StreamEnd => return Ok(Node::Nothing),
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            first => return events.node(first, DEEPEST),
        }
    }
}

struct Events<'a>(Parser<'a, saphyr_parser::StrInput<'a>>);

impl<'a> Events<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        match self.0.next_event() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(printable(&error.to_string())),
            None => Ok(Event::StreamEnd),
        }
    }

    fn node(&mut self, first: Event<'a>, deepest: usize) -> Result<Node, String> {
        let deepest = deepest.checked_sub(1).ok_or("it is nested too deeply")?;
        match first {
            Event::Scalar(text, ScalarStyle::Plain, ..)
                if matches!(&*text, "" | "~" | "null" | "Null" | "NULL") =>
            {
                Ok(Node::Nothing)
            }
            Event::Scalar(text, ..) => Ok(Node::Text(text.into_owned())),
            Event::SequenceStart(..) => loop {
                match self.next()? {
                    Event::SequenceEnd => return Ok(Node::List),
                    first => drop(self.node(first, deepest)?),
                }
            },
            Event::MappingStart(..) => {
                let mut entries: BTreeMap<String, Node> = BTreeMap::new();
                loop {
                    let name = match self.next()? {
                        Event::MappingEnd => {
                            return Ok(Node::Entries(entries.into_iter().collect()));
                        }
                        Event::Scalar(text, ..) => text.into_owned(),
                        _ => return Err("it has a name that is no text".to_owned()),
                    };
                    let first = self.next()?;
                    let value = self.node(first, deepest)?;
                    let twice = format!("`{}` is there twice", printable(&name));
                    if entries.insert(name, value).is_some() {
                        return Err(twice);
                    }
                }
            }
            Event::Alias(_) => Err("it has an alias (`*`)".to_owned()),
            _ => Err("it ends early".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, reference: &str) -> Option<String> {
        let lookaside = Lookaside::parse(text).unwrap();
        lookaside.of(&reference.parse().unwrap()).map(str::to_owned)
    }

    #[test]
    fn the_most_specific_section_that_has_an_address_counts() {
        let text = "# as skopeo installs it\n\
            default-docker:\n  sigstore: file:///old\n  use-sigstore-attachments: true\n\
            docker:\n  registry.example:\n    lookaside: \"https://a.example/x\"\n    sigstore: https://older\n  \
            registry.example/team:\n    lookaside-staging: file:///staging\n  \
            registry.example/team/app:1: {lookaside: 'https://b.example'}\n";
        for (reference, at) in [
            ("registry.example/team/app:1", "https://b.example"),
            ("registry.example/team/app:2", "https://a.example/x"),
            ("registry.example/x", "https://a.example/x"),
            ("other.example/x", "file:///old"),
        ] {
            assert_eq!(of(text, reference).as_deref(), Some(at), "{reference}");
        }
        for nothing in [
            "",
            "# nothing",
            "docker:",
            "docker: {}",
            "more: [1, {a: b}]",
            "~",
        ] {
            assert_eq!(of(nothing, "busybox"), None, "{nothing}");
        }
    }

    #[test]
    fn files_that_mean_nothing_are_refused() {
        for (text, part) in [
            ("docker: [", "while parsing"),
            ("[]", "has no names"),
            ("docker: x", "`docker` has no names"),
            ("docker:\n  a.example: 5", "`a.example` has no names"),
            ("docker:\n  a.example:\n    lookaside: [x]", "is no address"),
            ("docker: {a: {}, a: {}}", "`a` is there twice"),
            ("default-docker: {}\ndefault-docker: {}", "there twice"),
            ("x: &a {}\ndocker: *a", "alias"),
            ("? [a]\n: b", "no text"),
            (&"[".repeat(100), ""),
        ] {
            let problem = Lookaside::parse(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn a_scope_is_in_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Lookaside::read(&directory.path().join("missing"));
        assert_eq!(missing.unwrap(), Lookaside::default());
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join(name), text).unwrap();
        };
        write("a.yaml", "docker: {a.example: {lookaside: https://a}}");
        write("b.yaml", "default-docker: {lookaside: https://b}");
        write("c.yml", "docker: [");
        let all = Lookaside::read(directory.path()).unwrap();
        assert_eq!(all.of(&"a.example/x".parse().unwrap()), Some("https://a"));
        assert_eq!(all.of(&"b.example/x".parse().unwrap()), Some("https://b"));
        for (text, part) in [
            ("docker: {a.example: {}}", "`a.example` already"),
            ("default-docker: {}", "`default-docker` already"),
            ("docker: 5", "no names"),
        ] {
            write("d.yaml", text);
            let problem = Lookaside::read(directory.path()).unwrap_err().to_string();
            assert!(
                problem.contains(part) && problem.contains("d.yaml"),
                "{problem}"
            );
        }
    }
}
