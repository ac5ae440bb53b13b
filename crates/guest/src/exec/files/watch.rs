//! Reports changes of files, by inotify(7).

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use micabox_tree::{Root, names};
use micabox_wire::encode;
use micabox_wire::files::{FileChange, FileEvent, FileReply};
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, statat};
use rustix::io::Errno;
use rustix::process::fchdir;

use super::failed::Failed;
use super::reply::write_all;
use crate::exec::watches::{Event, Watching};

/// Bytes of events that are written at a time.
const PIECE: usize = 64 << 10;

/// Questions that are read at a time.
const ASKS: usize = 64;

/// Maximum number of directories that are watched at a time.
const WATCHES: usize = 1 << 16;

/// Files and directories that are watched.
pub struct Watcher {
    watching: Watching,
    root: Root,
    /// The path of what is watched. It is not held open: then the kernel would not report its end.
    path: Vec<u8>,
    /// Its device and inode.
    identity: (u64, u64),
    recursive: bool,
    /// Paths from the watched directory, by watch.
    paths: BTreeMap<i32, Vec<u8>>,
    /// Events to report.
    events: Vec<FileEvent>,
}

impl Watcher {
    /// Begins to watch.
    pub fn new(
        watching: Watching,
        root: Root,
        path: Vec<u8>,
        recursive: bool,
    ) -> Result<Self, Failed> {
        let file = root.open(&path, OFlags::PATH, Mode::empty())?;
        let stat = fstat(&file)?;
        let mut watcher = Self {
            watching,
            root,
            path,
            identity: (stat.st_dev, stat.st_ino),
            recursive,
            paths: BTreeMap::new(),
            events: Vec::new(),
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            watcher.add(b"", false)?;
        } else {
            let (parent, name) = watcher.root.parent(&watcher.path)?;
            fchdir(parent)?;
            let watch = watcher.watching.add(name, WANTED)?;
            fchdir(&watcher.root)?;
            watcher.paths.insert(watch, Vec::new());
        }
        Ok(watcher)
    }

    /// Opens the watched directory, if it still has its path.
    fn directory(&self) -> Result<Root, Errno> {
        let directory = self.root.directory(&self.path)?;
        let stat = fstat(&directory)?;
        if (stat.st_dev, stat.st_ino) != self.identity {
            return Err(Errno::STALE);
        }
        Ok(Root::without_links(directory))
    }

    /// Watches a directory, and if recursive, those below it. With `is_new`, what is in them is
    /// reported: it came before the watch.
    fn add(&mut self, path: &[u8], is_new: bool) -> Result<(), Errno> {
        let root = self.directory()?;
        let mut left = vec![path.to_vec()];
        while let Some(path) = left.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let directory = match root.open(&path, flags, Mode::empty()) {
                // Gone, or something else by now; or not for this user.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)
                    if !path.is_empty() =>
                {
                    continue;
                }
                directory => directory?,
            };
            if self.paths.len() >= WATCHES {
                return Err(Errno::NOSPC);
            }
            // The directory itself, whatever has its name.
            fchdir(&directory)?;
            let watch = self.watching.add(b".", WANTED | WatchFlags::ONLYDIR)?;
            fchdir(&self.root)?;
            self.paths.insert(watch, path.clone());
            if !self.recursive {
                break;
            }
            for name in names(&directory)? {
                let stat = statat(&directory, &*name, AtFlags::SYMLINK_NOFOLLOW);
                let kind = stat.map(|stat| FileType::from_raw_mode(stat.st_mode));
                let Ok(kind) = kind else {
                    continue;
                };
                let below = join(&path, &name);
                let is_directory = kind == FileType::Directory;
                if is_new {
                    self.event(FileChange::Created, below.clone(), is_directory, 0);
                }
                if is_directory {
                    left.push(below);
                }
            }
        }
        Ok(())
    }

    /// Stops watching a directory that was moved away, and those below it.
    fn remove(&mut self, path: &[u8]) {
        let watching = &mut self.watching;
        self.paths.retain(|&watch, watched| {
            let rest = watched.strip_prefix(path);
            let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
            if is_below {
                watching.remove(watch);
            }
            !is_below
        });
    }

    fn event(&mut self, change: FileChange, path: Vec<u8>, is_directory: bool, cookie: u32) {
        self.events.push(FileEvent {
            change,
            path,
            is_directory,
            cookie,
        });
    }

    /// Writes events to `to` until what is watched is removed, and an answer to each byte of `asks`
    /// after the events that came before it: the kernel queues an event before the call that caused
    /// it returns.
    pub fn report(mut self, asks: &impl AsFd, to: &impl AsFd) -> Result<(), Failed> {
        let mut may_ask = true;
        loop {
            let is_asked = self.watching.wait(may_ask.then_some(asks))?;
            let asked = if is_asked { read(asks)? } else { None };
            may_ask &= asked != Some(0);
            let asked = asked.unwrap_or(0);
            if asked > 0 {
                self.watching.flush()?;
            }
            if self.pass_on(to)? {
                return Ok(());
            }
            let mut told = Vec::new();
            for _ in 0..asked {
                append(&FileReply::Told, &mut told)?;
            }
            write_all(to, &told)?;
        }
    }

    /// Writes the events that there are. Returns whether there is nothing left to watch.
    fn pass_on(&mut self, to: &impl AsFd) -> Result<bool, Failed> {
        let mut frames = Vec::new();
        let mut is_over = false;
        while !is_over && let Some(event) = self.watching.next()? {
            is_over = self.take(&event);
            for event in self.events.drain(..) {
                append(&FileReply::Event(event), &mut frames)?;
            }
            if frames.len() > PIECE {
                write_all(to, &frames)?;
                frames.clear();
            }
        }
        write_all(to, &frames)?;
        Ok(is_over)
    }

    /// Handles an event. Returns whether there is nothing left to watch.
    fn take(&mut self, event: &Event) -> bool {
        let (flags, cookie, name) = (event.flags, event.cookie, event.name.as_deref());
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.event(FileChange::Overflow, Vec::new(), false, 0);
            return false;
        }
        let Some(path) = self.paths.get(&event.watch).cloned() else {
            return false;
        };
        if flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&event.watch);
            return path.is_empty();
        }
        let is_directory = flags.contains(ReadFlags::ISDIR);
        let is_self = flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF);
        // Subdirectories: their parent's watch reports this event.
        if !path.is_empty() && (is_self || name.is_none()) {
            return false;
        }
        let path = name.map_or(path.clone(), |name| join(&path, name));
        for (flag, change) in [
            (ReadFlags::CREATE, FileChange::Created),
            (ReadFlags::MODIFY, FileChange::Modified),
            (ReadFlags::CLOSE_WRITE, FileChange::Written),
            (ReadFlags::ATTRIB, FileChange::Attributes),
            (
                ReadFlags::DELETE | ReadFlags::DELETE_SELF,
                FileChange::Removed,
            ),
            (
                ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF,
                FileChange::MovedFrom,
            ),
            (ReadFlags::MOVED_TO, FileChange::MovedTo),
        ] {
            if flags.intersects(flag) {
                self.event(change, path.clone(), is_directory, cookie);
            }
        }
        if !self.recursive || !is_directory {
            return false;
        }
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.remove(&path);
        }
        let is_new = flags.contains(ReadFlags::CREATE);
        if (is_new || flags.contains(ReadFlags::MOVED_TO)) && self.add(&path, is_new).is_err() {
            self.event(FileChange::Overflow, path, true, 0);
        }
        false
    }
}

/// Reads questions. Returns how many there are; 0 at their end.
fn read(asks: &impl AsFd) -> Result<Option<usize>, Errno> {
    match rustix::io::read(asks, &mut [0; ASKS]) {
        Ok(count) => Ok(Some(count)),
        Err(Errno::INTR | Errno::AGAIN) => Ok(None),
        // There are no more.
        Err(_) => Ok(Some(0)),
    }
}

fn append(reply: &FileReply, frames: &mut Vec<u8>) -> Result<(), Failed> {
    encode(reply, frames).map_err(|error| Failed::new(error.to_string()))
}

const WANTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVE_SELF);

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        [] => name.to_vec(),
        path => [path, b"/", name].concat(),
    }
}
