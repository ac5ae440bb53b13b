//! Processes that hold something for all of a user's sandboxes, found by a name that says what.
//!
//! ```text
//! sandboxes/lower-<id>/lock          locked (flock) for as long as its holder lives
//! sandboxes/lower-<id>/control       the holder's socket
//! sandboxes/lower-<id>/lease.json    keeps the image in the store
//! ```
//!
//! A client gets what is held in the first message of its connection. What is left of a holder that was killed is
//! removed by the first that looks at sandboxes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_ground::hex;
use micabox_image::store::{HELD, Image};
use micabox_image::{Digest, Store};
use micabox_owner::socket;
use micabox_state::{Directory, Lock};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::message::{receive, send};
use crate::own_process;
use crate::own_process::Environment;

const LOCK: &str = "lock";
const CONTROL: &str = "control";

/// How long holders that end, and others that start, may be in the way.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long one that nothing may use any more is waited for: it unmounts, and its process exits.
const ENDING: Duration = Duration::from_secs(10);

/// Interval between looks at one that ends.
const POLL: Duration = Duration::from_millis(1);

/// Whether a step was done, or why not.
pub type Done = Result<(), String>;

/// What a holder is made for.
pub trait Wanted {
    /// What a client gets.
    type Held;

    /// The name of its directory.
    fn id(&self) -> io::Result<String>;

    /// What it is of, in messages.
    fn shown(&self) -> String;

    /// The images that stay in the store meanwhile, by the digests of their manifests.
    fn images(&self) -> Vec<Digest>;

    /// Starts the holder in a directory that is its own, and waits until it serves clients.
    ///
    /// # Errors
    /// What it says.
    fn start(&self, directory: &Path, listener: UnixListener, lock: &Lock) -> Result<(), Error>;

    /// Receives what a holder gives to a new client.
    ///
    /// # Errors
    /// Those of the connection: the holder has ended.
    fn greeted(&self, connection: UnixStream) -> io::Result<Self::Held>;
}

/// The holders of a store.
#[derive(Debug)]
pub struct Holders<'a> {
    store: &'a Store,
    all: Directory,
}

impl<'a> Holders<'a> {
    /// Opens those of a store.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn of(store: &'a Store) -> Result<Self, Error> {
        Ok(Self {
            store,
            all: Directory::open(store.root())?,
        })
    }

    /// Returns what the holder gives, which is started if there is none yet. The caller keeps the image in the store
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::NotServed`]; [`Error::HolderStuck`]; [`Error::State`]; those of starting it.
    pub fn hold<W: Wanted>(&self, wanted: &W) -> Result<W::Held, Error> {
        let id = wanted.id();
        let id = id.map_err(Error::state("looking at", Path::new("/proc/self/ns/user")))?;
        let directory = self.all.path().join(format!("{HELD}{id}"));
        let deadline = Instant::now() + PATIENCE;
        loop {
            // One that has just ended refuses, or ends the connection: then another one is needed.
            let connected = socket::connect(&directory, CONTROL.as_ref());
            let held = match connected.and_then(|connection| wanted.greeted(connection)) {
                Ok(held) => Some(held),
                Err(_) => self.start(wanted, &directory)?,
            };
            match held {
                Some(held) => return Ok(held),
                None if Instant::now() < deadline => {}
                None => return Err(Error::HolderStuck(wanted.shown())),
            }
        }
    }

    /// Waits until the holder of this name has ended, for as long as holders that end may be in the way. Returns whether
    /// it has; false for what is no holder.
    pub fn wait_for_end(&self, name: &str) -> bool {
        let directory = self.all.path().join(name);
        let deadline = Instant::now() + ENDING;
        name.starts_with(HELD)
            && loop {
                match directory.try_exists() {
                    Ok(false) => break true,
                    _ if Instant::now() >= deadline => break false,
                    _ => std::thread::sleep(POLL),
                }
            }
    }

    /// Starts a holder; none if another process has, or one that ends is still there.
    fn start<W: Wanted>(&self, wanted: &W, directory: &Path) -> Result<Option<W::Held>, Error> {
        let Some(claimed) = self.claim(directory)? else {
            std::thread::sleep(POLL);
            return Ok(None);
        };
        let Claimed {
            listener,
            connection,
            mut lock,
        } = claimed;
        let name = directory.file_name().map(OsStr::to_string_lossy);
        // The lease comes before the image's files are opened.
        let leased = self
            .store
            .lease_until_crash(&name.unwrap_or_default(), &wanted.images());
        let started = leased
            .map_err(Error::from)
            .and_then(|()| wanted.start(directory, listener, &lock))
            .and_then(|()| {
                let greeted = wanted.greeted(connection);
                greeted.map_err(|error| Error::NotServed {
                    tree: wanted.shown(),
                    problem: error.to_string(),
                })
            });
        match started {
            Ok(held) => {
                lock.outlive_us();
                Ok(Some(held))
            }
            Err(error) => {
                let _names = self.all.lock()?;
                let _ = fs::remove_dir_all(directory);
                Err(error)
            }
        }
    }

    /// Makes the directory, unless another process has it.
    fn claim(&self, directory: &Path) -> Result<Option<Claimed>, Error> {
        let _names = self.all.lock()?;
        if directory.join(CONTROL).exists() && socket::is_open(directory, CONTROL.as_ref()) {
            return Ok(None);
        }
        if let Ok(None) = Lock::attempt(&directory.join(LOCK)) {
            return Ok(None);
        }
        let make = || -> io::Result<Claimed> {
            match fs::remove_dir_all(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            fs::DirBuilder::new().mode(0o700).create(directory)?;
            let lock = Lock::wait(&directory.join(LOCK))?;
            let listener = socket::listen(directory, CONTROL.as_ref())?;
            // The first client, whose end is the holder's.
            let connection = socket::connect(directory, CONTROL.as_ref())?;
            Ok(Claimed {
                listener,
                connection,
                lock,
            })
        };
        make().map(Some).map_err(Error::state("making", directory))
    }
}

/// A directory that is this process's.
struct Claimed {
    listener: UnixListener,
    connection: UnixStream,
    lock: Lock,
}

/// Starts a holder's process, and waits until it serves clients. It gets the listening socket, a line to its starter,
/// and the files; once it serves, the lock, which it has from then on.
///
/// # Errors
/// Those of starting it; inside, what it says.
pub fn start_process(
    kind: &str,
    name: &str,
    environment: Environment,
    job: &impl Serialize,
    lock: &File,
    listener: UnixListener,
    files: Vec<File>,
) -> io::Result<Done> {
    let (line, its_line) = UnixStream::pair()?;
    let sockets = [OwnedFd::from(listener), its_line.into()].map(File::from);
    let (ours, mut process) = own_process::start(kind, name, None, environment)?;
    send(&ours, job, sockets.iter().chain(&files))?;
    drop((sockets, files));
    let done = match receive::<Done>(&ours) {
        Ok((done, _)) => done,
        Err(_) => Err("its holder was killed".to_owned()),
    };
    match done {
        Ok(()) => {
            send(&ours, &(), [lock])?;
            process.ends_unless_used(line);
        }
        Err(_) => process.wait(),
    }
    Ok(done)
}

/// Removes a holder's directory at its end. Otherwise the next process that looks does.
pub fn remove(store: &Path, directory: &Path) {
    if let Ok(all) = Directory::open(store)
        && let Ok(_names) = all.lock()
    {
        let _ = fs::remove_dir_all(directory);
    }
}

/// Returns the name of what is held: the digest of what makes it another one.
pub fn name(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    let digest = hash.finalize();
    hex(digest.first_chunk::<8>().map_or(&[][..], |first| first))
}

/// Returns what an image is called in messages.
pub fn shown(image: &Image) -> String {
    let name = image.reference.as_ref().map(ToString::to_string);
    name.unwrap_or_else(|| image.manifest_digest.to_string())
}

/// Makes the error about an image that is not held.
pub fn not_served(image: &Image, problem: impl ToString) -> Error {
    Error::NotServed {
        tree: shown(image),
        problem: problem.to_string(),
    }
}
