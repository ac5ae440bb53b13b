//! The events of a store's sandboxes: a file that every process appends to, and its readers.
//!
//! ```text
//! events/log    the newest events, a JSON object a line
//! events/old    those before, replaced when the log is full
//! ```
//!
//! There is no daemon to ask. The process that changes a sandbox notes it: as a rule its owner, and its
//! creator or remover before and after that. The death of an owner that was killed is noted by the
//! first process that sees it. Noting never fails what is noted: on a full disk, events are missing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use micabox_error::Error;
use micabox_ground::clock::now_as_parts;
use micabox_image::Store;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde::{Deserialize, Serialize};

use crate::{Lock, Record};

/// Most bytes of a file of events. There are two.
const MAX_FILE: u64 = 1 << 20;

/// Most bytes of an attribute.
const MAX_VALUE: usize = 2048;

/// What happened to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxEvent {
    /// When, seconds since 1970-01-01 UTC.
    pub time: i64,
    /// Nanoseconds of that.
    pub nanos: u32,
    /// What: `create`, `start`, `exec`, `exec_die`, `kill`, `pause`, `unpause`, `rename`, `update`,
    /// `stop`, `die`, `destroy`; `read_error` of an image that can't be read, once for each layer, or of the memory of the
    /// attribute `snapshot`.
    pub action: String,
    /// The sandbox's ID; empty if the event is an image's.
    pub id: String,
    /// Its name then.
    pub name: String,
    /// What it was made from.
    pub image: String,
    /// The sandbox's labels, and what else there is to say, such as an `exit_code`, which precedes a label of
    /// that name.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

/// Adds an event, if that is possible.
pub fn note(root: &Path, record: &Record, action: &str, attributes: &[(&str, String)]) {
    let labels = record.spec.labels.iter();
    let labels = labels.map(|(name, value)| (name.as_str(), value));
    let attributes = attributes.iter().map(|(name, value)| (*name, value));
    add(
        root,
        (&record.id, &record.name),
        &record.base.to_string(),
        action,
        labels.chain(attributes),
    );
}

/// Adds an event of an image, whichever sandboxes use it.
pub fn note_image(root: &Path, image: &str, action: &str, attributes: &[(&str, String)]) {
    let attributes = attributes.iter().map(|(name, value)| (*name, value));
    add(root, ("", ""), image, action, attributes);
}

fn add<'a>(
    root: &Path,
    (id, name): (&str, &str),
    image: &str,
    action: &str,
    attributes: impl Iterator<Item = (&'a str, &'a String)>,
) {
    let (time, nanos) = now_as_parts();
    let cut = |value: &str| value.chars().take(MAX_VALUE).collect();
    let event = SandboxEvent {
        time,
        nanos,
        action: action.to_owned(),
        id: id.to_owned(),
        name: name.to_owned(),
        image: cut(image),
        attributes: attributes
            .map(|(name, value)| (name.to_owned(), cut(value)))
            .collect(),
    };
    if let Ok(mut line) = serde_json::to_vec(&event) {
        line.push(b'\n');
        let _ = append(root, &line);
    }
}

fn directory(root: &Path) -> PathBuf {
    root.join("events")
}

fn make(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)
}

/// Watches a directory for files that are made or written to.
fn watch(directory: &Path) -> io::Result<OwnedFd> {
    make(directory)?;
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, directory, WatchFlags::CREATE | WatchFlags::MODIFY)?;
    Ok(changes)
}

/// Appends a line under the file's lock. A full file becomes the old one; a process that waits for its
/// lock then finds that the file was replaced, and takes the new one.
fn append(root: &Path, line: &[u8]) -> io::Result<()> {
    let directory = directory(root);
    let (log, old) = (directory.join("log"), directory.join("old"));
    let mut lock = match Lock::wait(&log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(&directory)?;
            Lock::wait(&log)?
        }
        lock => lock?,
    };
    if lock.file().metadata()?.len() + line.len() as u64 > MAX_FILE {
        fs::rename(&log, &old)?;
        lock = Lock::wait(&log)?;
    }
    let end = lock.file().metadata()?.len();
    let written = lock.file().write_all_at(line, end);
    if written.is_err() {
        // A part of a line would spoil the next one.
        lock.file().set_len(end)?;
    }
    written
}

/// A reader of a store's events, from the oldest that is kept.
#[derive(Debug)]
pub struct History {
    directory: PathBuf,
    changes: Option<OwnedFd>,
    file: Option<File>,
    offset: u64,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl History {
    /// Opens the events of a store.
    pub fn open(store: &Store) -> Self {
        let directory = directory(store.root());
        Self {
            // Before the first look: nothing happens between the two.
            changes: watch(&directory).ok(),
            file: File::open(directory.join("old")).ok(),
            directory,
            offset: 0,
            rest: Vec::new(),
        }
    }

    /// Returns a descriptor that can be read from when there may be more events; none if the system
    /// has no watches left, or the store is read-only.
    pub fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(AsFd::as_fd)
    }

    /// Returns the events since the last call, in order; none if nothing has happened. Lines that are
    /// no events are left out. A reader that does not call this for some thousand events misses some.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn read(&mut self) -> Result<Vec<SandboxEvent>, Error> {
        if let Some(changes) = &self.changes {
            // What is left of more changes wakes the reader once too often.
            let _ = rustix::io::read(changes, &mut [0; 4096]);
        }
        let mut events = Vec::new();
        let path = self.directory.join("log");
        loop {
            let now = fs::metadata(&path)
                .ok()
                .map(|file| (file.dev(), file.ino()));
            if let Some(file) = &self.file {
                let ours = file.metadata().map(|file| (file.dev(), file.ino()));
                self.rest_of(&mut events)?;
                // Nothing is added to a file that was replaced.
                if now.is_none() || ours.is_ok_and(|ours| Some(ours) == now) {
                    return Ok(events);
                }
            }
            match File::open(&path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(events),
                Err(source) => {
                    return Err(Error::State {
                        what: "opening",
                        path,
                        source,
                    });
                }
            }
            (self.offset, self.rest) = (0, Vec::new());
        }
    }

    /// Reads the rest of the current file.
    fn rest_of(&mut self, events: &mut Vec<SandboxEvent>) -> Result<(), Error> {
        const PIECE: usize = 64 << 10;
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut piece = vec![0; PIECE];
        loop {
            let count = file.read_at(&mut piece, self.offset);
            let count = count.map_err(|source| Error::State {
                what: "reading",
                path: self.directory.join("log"),
                source,
            })?;
            if count == 0 {
                return Ok(());
            }
            self.offset += count as u64;
            self.rest.extend(piece.get(..count).unwrap_or_default());
            let end = self.rest.iter().rposition(|byte| *byte == b'\n');
            let rest = self.rest.split_off(end.map_or(0, |end| end + 1));
            let lines = std::mem::replace(&mut self.rest, rest);
            let lines = lines.split(|byte| *byte == b'\n');
            events.extend(lines.filter_map(|line| serde_json::from_slice(line).ok()));
            if self.rest.len() as u64 > MAX_FILE {
                self.rest.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_reader_is_woken_by_an_event_and_not_before() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let mut reader = History::open(&store);
        let is_woken = |reader: &History| {
            let changes = reader.changes().unwrap();
            let mut changes = [PollFd::new(&changes, PollFlags::IN)];
            poll(&mut changes, Some(&Timespec::default())).unwrap() == 1
        };
        for line in [&b"{}\n"[..], &b" ".repeat(MAX_FILE as usize), b"{}\n"] {
            assert!(!is_woken(&reader));
            append(store.root(), line).unwrap();
            assert!(is_woken(&reader));
            reader.read().unwrap();
        }
    }

    #[test]
    fn a_reader_sees_every_event_of_many_writers_across_files_and_the_files_stay_small() {
        const EACH: usize = 2500;
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let line = |writer: usize, number: usize| {
            let event = SandboxEvent {
                time: 0,
                nanos: 0,
                action: "exec".into(),
                id: writer.to_string(),
                name: number.to_string(),
                image: "x".repeat(100),
                attributes: BTreeMap::new(),
            };
            [serde_json::to_vec(&event).unwrap(), b"\n".to_vec()].concat()
        };
        let mut reader = History::open(&store);
        assert!(reader.read().unwrap().is_empty());
        // What is no event is skipped.
        append(store.root(), b"{\n").unwrap();
        let mut seen = [0; 4];
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..seen.len())
                .map(|writer| {
                    let root = store.root();
                    scope.spawn(move || {
                        for number in 0..EACH {
                            append(root, &line(writer, number)).unwrap();
                        }
                    })
                })
                .collect();
            loop {
                let is_over = writers.iter().all(|writer| writer.is_finished());
                for event in reader.read().unwrap() {
                    let writer: usize = event.id.parse().unwrap();
                    assert_eq!(event.name, seen[writer].to_string());
                    seen[writer] += 1;
                }
                if is_over {
                    break;
                }
            }
        });
        assert_eq!(seen, [EACH; 4]);
        let sizes = ["log", "old"].map(|name| {
            let path = directory(store.root()).join(name);
            fs::metadata(path).unwrap().len()
        });
        assert!(
            sizes.iter().all(|size| (1..=MAX_FILE).contains(size)),
            "{sizes:?}"
        );
        // A later reader sees the end of it.
        let late = History::open(&store).read().unwrap();
        assert!(late.len() > EACH && late.iter().any(|event| event.name == "2499"));
    }
}
