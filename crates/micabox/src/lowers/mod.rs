//! Images below the roots of containers, each mounted once for all of a user's.
//!
//! ```text
//! sandboxes/lower-<id>/lock          locked (flock) for as long as its holder lives
//! sandboxes/lower-<id>/control       the holder's socket
//! sandboxes/lower-<id>/lease.json    keeps the image in the store
//! ```
//!
//! A process of its own ([`holder`]) has the tree mounted where no other one sees it. A client gets a
//! mount of it, and keeps the connection for as long as the mount is used. With the last connection the
//! holder ends, and the tree is gone. What is left of a holder that was killed is removed by the first that
//! looks at sandboxes.

mod holder;
mod served;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_image::Store;
use micabox_image::store::Image;
use micabox_owner::socket;
use rustix::fs::fstat;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::image_files;
use crate::owner::receive;
use crate::state::{Directory, LOWER, Lock};
use crate::{Error, owner};

pub(crate) use holder::KIND;

const LOCK: &str = "lock";
const CONTROL: &str = "control";

/// How long holders that end, and others that start, may be in the way.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between looks at one that ends.
const POLL: Duration = Duration::from_millis(1);

/// Where a tree is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum In {
    /// On this machine, with its users.
    Machine,
    /// In a user namespace.
    Users {
        /// Whether that has one user only.
        has_one: bool,
    },
}

/// The first message to a client, with its mount, and behind it the user namespace if there is one.
#[derive(Debug, Serialize, Deserialize)]
struct Hello(In);

/// A mounted image, for as long as this exists or another process has its connection.
#[derive(Debug)]
pub(crate) struct Held {
    /// A detached mount.
    pub(crate) mount: Arc<File>,
    /// The user namespace that it is in; none if that is this machine's.
    pub(crate) users: Option<Arc<File>>,
    /// The connection to its holder.
    pub(crate) holder: Arc<File>,
    place: In,
}

impl Held {
    /// Returns the tree for a machine that knows it by `serial`.
    pub(crate) fn tree(&self, serial: String) -> micabox_vmm::Tree {
        micabox_vmm::Tree {
            serial,
            mount: Arc::clone(&self.mount),
            users: self.users.clone(),
            holder: Arc::clone(&self.holder),
        }
    }
}

/// The mounted images of a store.
#[derive(Debug)]
pub(crate) struct Lowers<'a> {
    store: &'a Store,
    all: Directory,
}

/// What a holder is made for.
struct Wanted<'a> {
    image: &'a Image,
    /// The tree whose containers see this one too.
    beside: Option<&'a Held>,
    directory: PathBuf,
}

impl<'a> Lowers<'a> {
    /// Opens those of a store.
    ///
    /// # Errors
    /// [`Error::State`].
    pub(crate) fn of(store: &'a Store) -> Result<Self, Error> {
        Ok(Self {
            store,
            all: Directory::open(store.root())?,
        })
    }

    /// Returns an image's tree, which is mounted if it is not yet. The caller keeps the image in the store
    /// meanwhile. Containers have one tree's users: those of `beside` if it is given.
    ///
    /// # Errors
    /// [`Error::NotServed`]; [`Error::State`]; those of the image's files.
    pub(crate) fn hold(&self, image: &Image, beside: Option<&Held>) -> Result<Held, Error> {
        let id = id(image, beside).map_err(state("looking at", Path::new("/proc/self/ns/user")))?;
        let wanted = Wanted {
            image,
            beside,
            directory: self.all.path().join(format!("{LOWER}{id}")),
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            // One that has just ended refuses, or ends the connection: then another one is needed.
            let connected = socket::connect(&wanted.directory, CONTROL.as_ref());
            let held = match connected.and_then(greeted) {
                Ok(held) => Some(held),
                Err(_) => self.start(&wanted)?,
            };
            match held {
                Some(held) => return Ok(held),
                None if Instant::now() < deadline => {}
                None => {
                    return Err(not_served(image, "its holder neither ends nor answers"));
                }
            }
        }
    }

    /// Starts a holder; none if another process has, or one that ends is still there.
    fn start(&self, wanted: &Wanted<'_>) -> Result<Option<Held>, Error> {
        let Some(claimed) = self.claim(&wanted.directory)? else {
            std::thread::sleep(POLL);
            return Ok(None);
        };
        let Claimed {
            listener,
            connection,
            mut lock,
        } = claimed;
        let started = self
            .start_holder(wanted, listener, &lock)
            .and_then(|()| greeted(connection).map_err(|error| not_served(wanted.image, error)));
        match started {
            Ok(held) => {
                lock.outlive_us();
                Ok(Some(held))
            }
            Err(error) => {
                let _names = self.all.lock()?;
                let _ = fs::remove_dir_all(&wanted.directory);
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
        make().map(Some).map_err(state("making", directory))
    }

    fn start_holder(
        &self,
        wanted: &Wanted<'_>,
        listener: UnixListener,
        lock: &Lock,
    ) -> Result<(), Error> {
        let name = wanted.directory.file_name().map(OsStr::to_string_lossy);
        let digests = [wanted.image.manifest_digest];
        // The lease comes before the files are opened.
        self.store
            .lease_until_crash(&name.unwrap_or_default(), &digests)?;
        image_files::open(wanted.image)?;
        let mut files = Vec::new();
        if let Some(users) = wanted.beside.and_then(|beside| beside.users.as_ref()) {
            let users = users.try_clone();
            files.push(users.map_err(|error| not_served(wanted.image, error))?);
        }
        let job = holder::Job {
            store: self.store.root().to_owned(),
            directory: wanted.directory.clone(),
            beside: wanted.beside.map(|beside| beside.place),
        };
        files.extend(image_files::for_reading(wanted.image)?);
        match holder::start(&job, lock.file(), listener, files) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(problem)) => Err(not_served(wanted.image, problem)),
            Err(source) => Err(Error::System {
                what: "starting the holder of an image's tree",
                source,
            }),
        }
    }
}

/// A directory that is this process's.
struct Claimed {
    listener: UnixListener,
    connection: UnixStream,
    lock: Lock,
}

/// Receives what a holder gives to a new client.
fn greeted(connection: UnixStream) -> io::Result<Held> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let (hello, files) = receive::<Hello>(&connection)?;
    let mut files = files.into_iter().map(File::from).map(Arc::new);
    let mount = files.next().ok_or(io::ErrorKind::InvalidData)?;
    Ok(Held {
        mount,
        users: files.next(),
        holder: Arc::new(OwnedFd::from(connection).into()),
        place: hello.0,
    })
}

/// Gives a new client what [`greeted`] receives.
fn greet(
    connection: &UnixStream,
    place: In,
    mount: OwnedFd,
    users: Option<&File>,
) -> io::Result<()> {
    let mount = File::from(mount);
    let files = std::iter::once(&mount).chain(users);
    owner::send(connection, &Hello(place), files)
}

/// A key for an image's tree: this user, the user namespace to share (that of `beside`, if any), the image.
fn id(image: &Image, beside: Option<&Held>) -> io::Result<String> {
    let mut hash = Sha256::new();
    hash.update(geteuid().as_raw().to_le_bytes());
    if let Some(users) = beside.and_then(|beside| beside.users.as_ref()) {
        hash.update(fstat(users)?.st_ino.to_le_bytes());
    }
    // It has a name of its own, as each view without a part of it has.
    hash.update(image.fsmeta.as_os_str().as_bytes());
    let digits = hash.finalize();
    Ok(digits
        .iter()
        .take(8)
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}")))
}

fn not_served(image: &Image, problem: impl ToString) -> Error {
    let name = image.reference.as_ref().map(ToString::to_string);
    Error::NotServed {
        tree: name.unwrap_or_else(|| image.manifest_digest.to_string()),
        problem: problem.to_string(),
    }
}

fn state(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::State { what, path, source }
}
