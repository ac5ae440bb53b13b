//! The process that has an image's tree mounted for containers: one of this program's, in a session of its
//! own. Its child is in the tree's namespaces and [serves] clients; the parent stays outside,
//! maps the users, starts the jailed server of the tree if the kernel can't do that itself, and removes the
//! directory at the end.
//!
//! [serves]: super::served

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use micabox_holders::own_process::Environment;
use micabox_holders::{Done, own_process, receive, send};
use micabox_jail::Kind;
use micabox_jail::container::tree::{Owners, Readers, Space, make_root, mount_fuse, own_users};
use micabox_jail::container::{Subordinate, Users, mount_erofs};
use micabox_overlay::lower::LowerKind;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::In;
use super::served::serve;
use crate::mounted::Server;
use crate::mounted::{Below, Serve, Shown};

/// The kind of worker that holds a tree.
pub const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "lower";

/// Most threads of the tree's server.
const THREADS: usize = 8;

/// What the process gets, with its listening socket, a line to its starter, the user namespace of the tree beside it if there is
/// one, and the image's files. Its lock follows once the tree is mounted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) store: PathBuf,
    pub(super) directory: PathBuf,
    /// Where the tree beside it is; none if there is no such tree.
    pub(super) beside: Option<In>,
}

/// Starts the process, and waits until it serves clients. It has the lock from then on. It gets the listening socket
/// and the files.
pub(super) fn start(
    job: &Job,
    lock: &File,
    listener: UnixListener,
    files: Vec<File>,
) -> io::Result<Done> {
    let environment = Environment::Programs;
    micabox_holders::start_process(NAME, "mica-lower", environment, job, lock, listener, files)
}

fn work(_: RawFd) -> i32 {
    let ran = run();
    own_process::end();
    i32::from(ran.is_err())
}

fn run() -> io::Result<()> {
    let (connection, job, files) = own_process::begin::<Job>()?;
    // It keeps no directory busy.
    rustix::process::chdir("/")?;
    let mut files = files.into_iter();
    let mut socket = || files.next().ok_or(io::ErrorKind::InvalidData);
    let clients = Clients {
        listener: socket()?.into(),
        starter: socket()?.into(),
    };
    let tree = match hold(job.beside, &clients, files) {
        Ok(tree) => tree,
        Err(problem) => return send(&connection, &Done::Err(problem), []),
    };
    // The child has them.
    drop(clients);
    send(&connection, &Done::Ok(()), [])?;
    let ((), _lock) = receive(&connection)?;
    drop(connection);
    let space = Arc::new(tree.space);
    if let Some(server) = tree.server {
        let space = Arc::clone(&space);
        std::thread::spawn(move || {
            // Without its server the tree is of no use, and neither are containers with it.
            let _ = server.wait();
            space.end();
        });
    }
    space.wait();
    micabox_holders::remove(&job.store, &job.directory);
    Ok(())
}

/// The sockets on which clients and the starter are served.
struct Clients {
    listener: UnixListener,
    starter: UnixStream,
}

impl Clients {
    fn serve(&self, place: In, users: Option<&File>) -> io::Result<()> {
        serve(&self.listener, place, users, self.starter.try_clone()?)
    }
}

/// A mounted tree.
struct Tree {
    space: Space,
    server: Option<Server>,
    _users: Option<Users>,
}

impl Tree {
    fn of(space: Space) -> Self {
        Self {
            space,
            server: None,
            _users: None,
        }
    }
}

/// Mounts the tree: by the kernel for root, where it can, otherwise with a server.
fn hold(
    beside: Option<In>,
    clients: &Clients,
    mut files: impl Iterator<Item = OwnedFd>,
) -> Result<Tree, String> {
    if let Some(In::Users { has_one }) = beside {
        let users = files.next().ok_or("there are no users")?;
        let owners = Owners::Of(users);
        return with_server(&owners, has_one, clients, files.collect());
    }
    let files: Vec<OwnedFd> = files.collect();
    if geteuid().is_root() {
        let why = match by_kernel(clients, &files) {
            Ok(space) => return Ok(Tree::of(space)),
            // The containers have a tree of the kernel's, and are in no namespace with a server's.
            Err(why) if beside.is_some() => return Err(why),
            Err(why) => why,
        };
        let users = Users::claim().map_err(|error| error.to_string())?;
        let owners = Owners::Range(users.first());
        let tree = with_server(&owners, false, clients, files);
        return match tree {
            Ok(tree) => Ok(Tree {
                _users: Some(users),
                ..tree
            }),
            Err(other) => Err(format!("{why}; and by FUSE: {other}")),
        };
    }
    match Subordinate::find() {
        Ok(ranges) => with_server(&Owners::Subordinate(ranges), false, clients, files),
        Err(_) => with_server(&Owners::One, true, clients, files),
    }
}

/// Has the kernel mount the files.
fn by_kernel(clients: &Clients, files: &[OwnedFd]) -> Result<Space, String> {
    let space = Owners::Machine.start(|inside| {
        let mounted = mount_erofs(files).and_then(|mount| make_root(&mount));
        report(&inside.channel, &mounted)?;
        mounted?;
        clients.serve(In::Machine, None)
    });
    let space = space.map_err(|error| error.to_string())?;
    receive_report(&space)?;
    Ok(space)
}

/// Has a jailed process serve the files.
fn with_server(
    owners: &Owners,
    has_one: bool,
    clients: &Clients,
    files: Vec<OwnedFd>,
) -> Result<Tree, String> {
    let place = In::Users { has_one };
    let threads = available_parallelism().map_or(2, |count| count.get().clamp(2, THREADS));
    let space = owners.start(|inside| {
        let users = File::from(own_users()?);
        let tree = mount_fuse(threads, Readers::All);
        let said = tree.as_ref().map(drop).map_err(ToString::to_string);
        let channels = tree.iter().flat_map(|tree| &tree.channels);
        let channels = channels.map(|channel| channel.try_clone().map(File::from));
        let channels = channels.collect::<io::Result<Vec<_>>>()?;
        send(&inside.channel, &said, &channels)?;
        drop(channels);
        let mount = tree?.mount;
        // The first request, which is answered once there is a server.
        let mounted = inside.become_root().and_then(|()| make_root(&mount));
        report(&inside.channel, &mounted)?;
        mounted?;
        drop(mount);
        clients.serve(place, Some(&users))
    });
    let space = space.map_err(|error| error.to_string())?;
    let (said, channels) = receive::<Done>(&space.channel)
        .map_err(|error| format!("its namespaces are gone: {error}"))?;
    said?;
    let request = Serve {
        channels: u32::try_from(channels.len()).unwrap_or(1),
        has_disk: false,
        lower: Below::Filesystem(LowerKind::Erofs),
        is_writable: false,
        is_for_one_user: has_one,
        shown: Shown::BelowContainers {
            has_one_owner: has_one,
        },
        room: (0, 0),
    };
    let files = channels.into_iter().chain(files).collect();
    let server = Server::start(&request, files).map_err(|error| error.to_string())?;
    receive_report(&space)?;
    Ok(Tree {
        server: Some(server),
        ..Tree::of(space)
    })
}

/// Reports the result of a step to the parent process.
fn report(outside: &UnixStream, done: &io::Result<()>) -> io::Result<()> {
    let done: Done = done.as_ref().copied().map_err(ToString::to_string);
    send(outside, &done, [])
}

fn receive_report(space: &Space) -> Result<(), String> {
    match receive::<Done>(&space.channel) {
        Ok((done, _)) => done,
        Err(error) => Err(format!("its namespaces are gone: {error}")),
    }
}
