//! Finds, registers and removes sandboxes in their directory.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_ground::random;
use micabox_image::store::HELD;

use super::{Lock, Record, Registration, Status, record_file};
use crate::{forget_volume, history, name};

/// Hexadecimal digits of a sandbox's ID.
pub const ID_LENGTH: usize = 32;

const LOCK: &str = "lock";

/// The lease that keeps the sandbox's image in the store; see
/// [`Store::lease`](micabox_image::Store::lease).
const LEASE: &str = "lease.json";

/// Interval of polls for a sandbox's end.
const POLL: Duration = Duration::from_millis(20);

/// How long a killed machine may take to exit.
const LAST_MOMENT: Duration = Duration::from_secs(30);

/// How many names are tried before giving up.
const NAME_ATTEMPTS: usize = 64;

/// The disk for changes, in a sandbox's directory.
const UPPER: &str = "upper.ext4";

/// Returns the path of the disk for changes in a sandbox's directory.
pub fn upper_disk(directory: &Path) -> PathBuf {
    directory.join(UPPER)
}

/// The directory of all sandboxes of a store.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    /// Held while names are given and directories are made or removed. Its holder sees no
    /// incomplete sandbox, except one that a killed process left.
    lock: PathBuf,
}

/// A sandbox on disk.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its record, as of when it was found.
    pub record: Record,
    /// Its directory.
    pub path: PathBuf,
}

impl Directory {
    /// Opens the directory of the store at `root`.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let path = root.join("sandboxes");
        let locks = root.join("locks");
        for directory in [&path, &locks] {
            fs::create_dir_all(directory).map_err(Error::state("making", directory))?;
        }
        Ok(Self {
            path,
            lock: locks.join("sandboxes"),
        })
    }

    /// Returns the path of the directory of all.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes a sandbox that has ended. Returns its record.
    pub fn remove(&self, name_or_id: &str) -> Result<Record, Error> {
        let (_names, found, _lock) = self.ended(name_or_id)?;
        discard(&found.path)?;
        self.is_gone(&found.record);
        Ok(found.record)
    }

    /// Does what follows the removal of a sandbox's directory: its own volumes go, and observers are told.
    pub(super) fn is_gone(&self, record: &Record) {
        if let Some(store) = self.path.parent() {
            record
                .own_volumes()
                .for_each(|name| forget_volume(store, name));
        }
        self.note(record, "destroy", &[]);
    }

    /// Finds the sandbox with this name, ID, or beginning of an ID.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`], [`Error::Ambiguous`], [`Error::State`].
    pub fn find(&self, name_or_id: &str) -> Result<Found, Error> {
        let _names = self.lock()?;
        match self.running(name_or_id) {
            Some(found) => Ok(found),
            None => find(self.scan_locked()?, name_or_id),
        }
    }

    /// Returns the sandbox that runs with this whole ID, without a look at all others: a server asks for one with each
    /// request. The caller holds the lock on names.
    fn running(&self, id: &str) -> Option<Found> {
        if !is_id(id) {
            return None;
        }
        let path = self.path.join(id);
        // What does not run may have to be removed, or noted as dead, as a scan does.
        let is_alive = matches!(Lock::attempt(&path.join(LOCK)), Ok(None));
        let record = is_alive.then(|| record_file::read(&path)).flatten()?;
        Some(Found { record, path })
    }

    /// Waits until the sandbox has ended and its lock is free; false if it is still held after
    /// `patience`.
    pub fn wait_for_end(&self, found: &Found, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            // An attempt holds the lock for a moment, in which a scan would take the sandbox for a
            // running one. Scans and attempts both hold the lock on names.
            let names = self.lock();
            let attempt = Lock::attempt(&found.path.join(LOCK));
            drop(names);
            match attempt {
                // Held by another process.
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
                Ok(None) => return false,
                // Free, or removed with its directory.
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }

    /// Makes a record for a new sandbox of this process. A given name must be valid; without one, a
    /// name is generated.
    pub fn register(&self, name: Option<&str>, mut record: Record) -> Result<Registration, Error> {
        let names = self.lock()?;
        record.name = choose_name(name, &record.id, &self.scan_locked()?)?;
        let path = self.path.join(&record.id);
        let make = || {
            fs::DirBuilder::new().mode(0o700).create(&path)?;
            Lock::wait(&path.join(LOCK))
        };
        let lock = make().map_err(Error::state("making", &path))?;
        let written = record_file::write(&path, &record);
        drop(names);
        let registration = Registration::of(self.clone(), record, lock);
        match written {
            Ok(()) => {
                registration.note("create", &[]);
                Ok(registration)
            }
            Err(error) => {
                registration.forget();
                Err(error)
            }
        }
    }

    /// Takes over a sandbox that has ended, to start it again. The sandbox stays even if that
    /// fails.
    pub fn resume(
        &self,
        id: &str,
        change: impl FnOnce(&mut Record),
    ) -> Result<Registration, Error> {
        let (Found { mut record, path }, lock) = self.hold_for_start(id)?;
        micabox_owner::forget_stop(&path);
        change(&mut record);
        let names = self.lock()?;
        record_file::write(&path, &record)?;
        drop(names);
        Ok(Registration::of(self.clone(), record, lock))
    }

    /// Renames a sandbox that does not run. The owner of one that runs has its record
    /// ([`Registration::rename`]).
    pub fn rename(&self, id: &str, name: &str) -> Result<(), Error> {
        let (_names, mut found, lock) = self.ended(id)?;
        let _lock = lock.map_err(Error::state("locking", &found.path))?;
        let name = choose_name(Some(name), id, &self.scan_locked()?)?;
        let old = std::mem::replace(&mut found.record.name, name);
        record_file::write(&found.path, &found.record)?;
        self.note(&found.record, "rename", &[("old_name", old)]);
        Ok(())
    }

    /// Changes the record of a sandbox that does not run. None, and no change, if `change` returns
    /// none.
    pub fn change<T>(
        &self,
        id: &str,
        change: impl FnOnce(&mut Record) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let (_names, mut found, lock) = self.ended(id)?;
        let _lock = lock.map_err(Error::state("locking", &found.path))?;
        if !found.record.can_start() {
            return Ok(None);
        }
        let changed = change(&mut found.record);
        if changed.is_some() {
            record_file::write(&found.path, &found.record)?;
            self.note(&found.record, "update", &[]);
        }
        Ok(changed)
    }

    /// Adds an event of a sandbox to the store's history.
    pub fn note(&self, record: &Record, action: &str, attributes: &[(&str, String)]) {
        if let Some(root) = self.path.parent() {
            history::note(root, record, action, attributes);
        }
    }

    /// Checks that no sandbox has this name.
    pub fn check_name(&self, name: &str) -> Result<(), Error> {
        choose_name(Some(name), "", &self.scan()?).map(drop)
    }

    /// Locks a sandbox that has a disk and does not run, which keeps it from being started or
    /// removed for as long as the lock is held.
    pub fn hold(&self, name_or_id: &str) -> Result<(Found, Lock), Error> {
        let record = self.find(name_or_id)?.record;
        if !record.spec.upper.is_kept() {
            return Err(record.not_kept());
        }
        self.lock_ended(&record)
    }

    /// Locks a sandbox that can be started, as [`Directory::hold`] does.
    pub fn hold_for_start(&self, id: &str) -> Result<(Found, Lock), Error> {
        let record = self.find(id)?.record;
        if !record.can_start() && !record.status.is_live() {
            return Err(record.not_kept());
        }
        self.lock_ended(&record)
    }

    fn lock_ended(&self, record: &Record) -> Result<(Found, Lock), Error> {
        let (names, found, lock) = self.ended(&record.id)?;
        drop(names);
        let lock = lock.map_err(Error::state("locking", &found.path))?;
        match found.record.machine {
            Some(machine) if !machine.end(LAST_MOMENT) => Err(Error::Stuck {
                name: found.record.name,
                after: LAST_MOMENT,
            }),
            _ => Ok((found, lock)),
        }
    }

    /// Finds a sandbox that has ended, and locks names and the sandbox. A machine whose owner was
    /// killed exits a moment later and uses the disk and holds the sandbox's lock until then; this
    /// waits for it.
    fn ended(&self, name_or_id: &str) -> Result<(Lock, Found, io::Result<Lock>), Error> {
        let deadline = Instant::now() + LAST_MOMENT;
        loop {
            let names = self.lock()?;
            let found = find(self.scan_locked()?, name_or_id)?;
            let lock = match Lock::attempt(&found.path.join(LOCK)) {
                Ok(Some(lock)) => Ok(lock),
                Err(error) => Err(error),
                Ok(None) => {
                    drop(names);
                    if !found.record.is_without_owner() {
                        return Err(Error::Running(found.record.name));
                    }
                    let Record { machine, name, .. } = found.record;
                    if Instant::now() > deadline {
                        let after = LAST_MOMENT;
                        return Err(Error::Stuck { name, after });
                    }
                    if let Some(machine) = machine {
                        machine.kill();
                    }
                    std::thread::sleep(POLL);
                    continue;
                }
            };
            return Ok((names, found, lock));
        }
    }

    /// Locks names, while a name is given or a directory is made or removed.
    pub fn lock(&self) -> Result<Lock, Error> {
        Lock::wait(&self.lock).map_err(Error::state("locking", &self.lock))
    }

    /// Returns all sandboxes, oldest first, after removing ended ones with `auto_remove`.
    pub fn scan(&self) -> Result<Vec<Found>, Error> {
        let _names = self.lock()?;
        self.scan_locked()
    }

    /// Returns the directories of sandboxes with a disk whose records can't be read.
    pub fn unreadable(&self) -> Result<Vec<PathBuf>, Error> {
        let _names = self.lock()?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(Error::state("reading", &self.path))? {
            let path = entry.map_err(Error::state("reading", &self.path))?.path();
            if is_sandbox(&path) && upper_disk(&path).exists() && record_file::read(&path).is_none()
            {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// As [`Directory::scan`]; the caller holds the lock on names.
    pub(super) fn scan_locked(&self) -> Result<Vec<Found>, Error> {
        let mut all = Vec::new();
        let entries = fs::read_dir(&self.path).map_err(Error::state("reading", &self.path))?;
        for entry in entries {
            let path = entry.map_err(Error::state("reading", &self.path))?.path();
            if !is_sandbox(&path) {
                remove_left_holder(&path);
                continue;
            }
            let is_alive = match Lock::attempt(&path.join(LOCK)) {
                Ok(lock) => lock.is_none(),
                // Its creator died before it made the lock.
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                Err(error) => return Err(Error::state("locking", &path)(error)),
            };
            match record_file::read(&path) {
                Some(record) if is_alive => all.push(Found { record, path }),
                Some(mut record) if !record.auto_remove => {
                    if record.status.is_live() {
                        record.status = Status::Dead;
                        // The first that sees it.
                        if record_file::write(&path, &record).is_ok() {
                            self.note(&record, "die", &[died()]);
                        }
                    }
                    release_image(&path, &record);
                    all.push(Found { record, path });
                }
                // Its record is damaged, or of another version of mica.
                None if upper_disk(&path).exists() => {}
                // It has `auto_remove`, or its creator died before it wrote the record.
                record if !is_alive => match discard(&path) {
                    // A read-only store can be listed; what should be removed is left out.
                    Err(Error::State { source, .. })
                        if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
                    discarded => {
                        discarded?;
                        if let Some(record) = record {
                            if record.status.is_live() {
                                self.note(&record, "die", &[died()]);
                            }
                            self.is_gone(&record);
                        }
                    }
                },
                _ => {}
            }
        }
        all.sort_by(|a, b| {
            let order = |found: &Found| (found.record.created, found.record.created_nanos);
            order(a).cmp(&order(b)).then(a.record.id.cmp(&b.record.id))
        });
        Ok(all)
    }
}

/// Returns the attribute of a `die` event of a sandbox that was found dead.
fn died() -> (&'static str, String) {
    (
        "error",
        "its owner was killed, or the host restarted".to_owned(),
    )
}

/// Returns the requested name if it is free, or generates a free one.
pub(super) fn choose_name(wish: Option<&str>, id: &str, others: &[Found]) -> Result<String, Error> {
    let holder = |name: &str| others.iter().find(|found| found.record.name == name);
    match wish {
        Some(wish) => match holder(wish) {
            None => Ok(wish.to_owned()),
            Some(other) => Err(Error::NameTaken {
                name: wish.to_owned(),
                id: other.record.short_id().to_owned(),
            }),
        },
        None => Ok((0..NAME_ATTEMPTS)
            .filter_map(|attempt| Some(name::from_random(random().ok()?, attempt)))
            .find(|name| holder(name).is_none())
            .unwrap_or_else(|| id.to_owned())),
    }
}

/// Finds the sandbox with this name, ID, or beginning of an ID.
fn find(mut all: Vec<Found>, name_or_id: &str) -> Result<Found, Error> {
    let exact = |found: &Found| found.record.name == name_or_id || found.record.id == name_or_id;
    if let Some(at) = all.iter().position(exact) {
        return Ok(all.swap_remove(at));
    }
    all.retain(|found| !name_or_id.is_empty() && found.record.id.starts_with(name_or_id));
    match (all.pop(), all.len()) {
        (None, _) => Err(Error::NoSuchSandbox(name_or_id.to_owned())),
        (Some(found), 0) => Ok(found),
        (Some(_), _) => Err(Error::Ambiguous(name_or_id.to_owned())),
    }
}

/// Returns whether the directory's name is that of a sandbox.
fn is_sandbox(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(is_id)
}

/// Returns whether a text has the form of an ID.
fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == ID_LENGTH && text.bytes().all(is_digit)
}

/// Removes what a holder of an image left that was killed.
fn remove_left_holder(path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str());
    if name.is_some_and(|name| name.starts_with(HELD))
        && !matches!(Lock::attempt(&path.join(LOCK)), Ok(None))
    {
        let _ = fs::remove_dir_all(path);
    }
}

/// Releases the image of a sandbox that does not run, unless the sandbox can be started.
pub(super) fn release_image(path: &Path, record: &Record) {
    if !record.can_start() {
        let _ = fs::remove_file(path.join(LEASE));
    }
}

/// Deletes a sandbox's directory. The caller holds the lock on names.
pub(super) fn discard(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::state("removing", path)(error))
        }
        _ => Ok(()),
    }
}
