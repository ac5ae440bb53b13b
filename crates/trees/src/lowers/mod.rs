//! Images below the roots of containers, each mounted once for all of a user's.
//!
//! A process of its own ([`holder`]) has the tree mounted where no other one sees it. A client gets a
//! mount of it, and keeps the connection for as long as the mount is used. With the last connection the
//! holder ends, and the tree is gone.

mod holder;
mod served;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use micabox_error::Error;
use micabox_holders::{Holders, PATIENCE, Wanted, name, not_served, receive, send, shown};
use micabox_image::Digest;
use micabox_image::store::Image;
use micabox_state::Lock;
use rustix::fs::fstat;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

pub use holder::KIND;

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
pub struct Held {
    /// A detached mount.
    pub mount: Arc<File>,
    /// The user namespace that it is in; none if that is this machine's.
    pub users: Option<Arc<File>>,
    /// The connection to its holder.
    pub holder: Arc<File>,
    place: In,
}

impl Held {
    /// Returns the tree for a machine that knows it by `serial`.
    pub fn tree(&self, serial: String) -> micabox_vmm::Tree {
        micabox_vmm::Tree {
            serial,
            mount: Arc::clone(&self.mount),
            users: self.users.clone(),
            holder: Arc::clone(&self.holder),
        }
    }
}

/// Returns an image's tree, which is mounted if it is not yet. The caller keeps the image in the store
/// meanwhile. Containers have one tree's users: those of `beside` if it is given.
///
/// # Errors
/// [`Error::NotServed`]; [`Error::State`]; those of the image's files.
pub fn hold(image: &Image, beside: Option<&Held>) -> Result<Held, Error> {
    let served = (!micabox_holders::is_whole(image)).then(|| micabox_holders::for_reading(image));
    Holders::of(&image.store)?.hold(&Tree {
        image,
        served: served.transpose()?,
        beside,
    })
}

/// What a holder is made for.
struct Tree<'a> {
    image: &'a Image,
    /// Its files, if a process serves some of them.
    served: Option<Vec<File>>,
    /// The tree whose containers see this one too.
    beside: Option<&'a Held>,
}

impl Wanted for Tree<'_> {
    type Held = Held;

    /// This user, the user namespace to share (that of `beside`, if any), the image; and the filesystem of layers that are
    /// served: without its server, a tree of them can't be read.
    fn id(&self) -> io::Result<String> {
        let user = geteuid().as_raw().to_le_bytes();
        let namespace = match self.beside.and_then(|beside| beside.users.as_ref()) {
            Some(users) => fstat(users)?.st_ino.to_le_bytes().to_vec(),
            None => Vec::new(),
        };
        // It has a name of its own, as each view without a part of it has.
        let image = self.image.fsmeta.as_os_str().as_bytes();
        let mut devices = Vec::new();
        for file in self.served.iter().flatten() {
            devices.extend(fstat(file)?.st_dev.to_le_bytes());
        }
        Ok(name(&[&user, &namespace, image, &devices]))
    }

    fn shown(&self) -> String {
        shown(self.image)
    }

    fn images(&self) -> Vec<Digest> {
        vec![self.image.manifest_digest]
    }

    fn start(&self, directory: &Path, listener: UnixListener, lock: &Lock) -> Result<(), Error> {
        let mut files = Vec::new();
        if let Some(users) = self.beside.and_then(|beside| beside.users.as_ref()) {
            let users = users.try_clone();
            files.push(users.map_err(|error| not_served(self.image, error))?);
        }
        let job = holder::Job {
            store: self.image.store.root().to_owned(),
            directory: directory.to_owned(),
            beside: self.beside.map(|beside| beside.place),
        };
        match &self.served {
            Some(served) => {
                for file in served {
                    let again = file.try_clone();
                    files.push(again.map_err(|error| not_served(self.image, error))?);
                }
            }
            None => files.extend(micabox_holders::for_reading(self.image)?),
        }
        match holder::start(&job, lock.file(), listener, files) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(problem)) => Err(not_served(self.image, problem)),
            Err(source) => Err(Error::System {
                what: "starting the holder of an image's tree",
                source,
            }),
        }
    }

    fn greeted(&self, connection: UnixStream) -> io::Result<Held> {
        greeted(connection)
    }
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
    send(connection, &Hello(place), files)
}
