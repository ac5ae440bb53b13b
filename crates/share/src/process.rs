//! The server's process: this program executed again, in a jail whose root is the folder.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use micabox_jail::{
    self as jail, Child, Confinement, FOLDER_CAPABILITIES, Kind, Program, Supervised, Tail,
    enter_folder, plain_arguments,
};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen,
    socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use crate::queues;
use crate::server::{Manner, Most, Server};
use crate::stream::{self, Writer};
use crate::versions::Table;

/// The kind of worker that serves a folder.
pub const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "share";

/// Bytes of address space beyond a machine's memory: the program, stacks, and what the guest makes
/// the server know.
const ADDRESS_SPACE: u64 = 4 << 30;

/// Most descriptors of a server, where the user may have as many.
const DESCRIPTORS: u64 = 1 << 20;

/// Most files that a server watches.
const WATCHES: usize = 1 << 16;

/// Bytes of a server's messages to keep.
const MESSAGES: usize = 4 << 10;

/// How requests reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// As frames on a stream: a request is as long as its header says, and so is a reply.
    Stream,
    /// By vhost-user, from a machine with this many bytes of memory.
    VhostUser {
        /// The machine's memory.
        memory: u64,
    },
}

/// What a server serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether nothing can be changed through it.
    pub read_only: bool,
    /// Whether the guest may see names and attributes as they were a second ago.
    pub cached: bool,
    /// Whether what is mounted below the folder is there as well.
    pub with_mounts: bool,
    /// Whether it is the writable layer of an overlay of the guest's, which alone changes it. It
    /// then takes whiteouts and all extended attributes (`attribute.rs`). A lock (flock(2)) that
    /// the open folder has is held until the server has ended.
    pub upper: bool,
    /// Whether owners and extended attributes are shown as they are, for programs of this machine. If root
    /// starts it, it then has root's right to read all of them.
    pub as_it_is: bool,
    /// The name of the only entry of the share, if what is shared is a file and not a folder.
    pub only: Option<CString>,
    /// How requests reach it.
    pub transport: Transport,
}

/// Why a folder can't be shared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be started.
    #[error("starting the server of a shared folder")]
    Start(#[source] io::Error),
    /// The process ended before it served; its message.
    #[error("the server of a shared folder ended: {0}")]
    Ended(String),
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    _supervised: Supervised,
}

/// What the process is given.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    folder: RawFd,
    socket: RawFd,
    ready: RawFd,
    read_only: bool,
    cached: bool,
    with_mounts: bool,
    upper: bool,
    as_it_is: bool,
    only: Option<Vec<u8>>,
    watches: usize,
    transport: Transport,
}

/// Starts the server of `folder`, which may be open as a place (`O_PATH`), and returns it with the
/// socket for a monitor.
///
/// # Errors
/// [`Error`].
pub fn start(folder: OwnedFd, settings: &Settings) -> Result<(Process, OwnedFd), Error> {
    let (ours, theirs) = sockets(settings.transport).map_err(Error::Start)?;
    let (ready, ready_child) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| Error::Start(error.into()))?;
    let task = Task {
        folder: folder.as_raw_fd(),
        socket: theirs.as_raw_fd(),
        ready: ready_child.as_raw_fd(),
        read_only: settings.read_only,
        cached: settings.cached,
        with_mounts: settings.with_mounts,
        upper: settings.upper,
        as_it_is: settings.as_it_is,
        only: settings.only.clone().map(CString::into_bytes),
        watches: watches(),
        transport: settings.transport,
    };
    let memory = match settings.transport {
        Transport::Stream => 0,
        Transport::VhostUser { memory } => memory,
    };
    let tail = Tail::new(MESSAGES);
    let run = || -> io::Result<Supervised> {
        let description = describe(&task)?;
        let confinement = Confinement {
            keep: vec![
                task.folder,
                task.socket,
                task.ready,
                description.as_raw_fd(),
            ],
            address_space: memory.saturating_add(ADDRESS_SPACE),
            file_size: u64::MAX,
            descriptors: DESCRIPTORS,
            processor_seconds: None,
            capabilities: FOLDER_CAPABILITIES,
        };
        let arguments = plain_arguments(NAME, description.as_raw_fd());
        let path = jail::program(NAME)?;
        let program = Program::new(&path, Some("mica share"), arguments.to_vec())?;
        let tail = tail.clone();
        Supervised::start(
            NAME,
            (folder, theirs, ready_child, description),
            (),
            move |()| Child::spawn(&program, &confinement, None),
            move |running, stderr| {
                Tail::drain(&[(&tail, stderr.as_fd())]);
                let _ = running.wait();
                let text = tail.text();
                if !text.trim().is_empty() {
                    // For the log of the sandbox's owner.
                    eprintln!("the server of a shared folder ended: {}", text.trim());
                }
            },
        )
    };
    let supervised = run().map_err(Error::Start)?;
    // The pipe ends without a byte if the process does.
    match File::from(ready).read_exact(&mut [0]) {
        Ok(()) => Ok((
            Process {
                _supervised: supervised,
            },
            ours,
        )),
        Err(_) => {
            // It is about to say why.
            supervised.wait();
            Err(Error::Ended(tail.text().trim().to_owned()))
        }
    }
}

/// Returns the monitor's socket and the server's.
fn sockets(transport: Transport) -> io::Result<(OwnedFd, OwnedFd)> {
    match transport {
        Transport::Stream => {
            let (ours, theirs) = UnixStream::pair()?;
            Ok((ours.into(), theirs.into()))
        }
        Transport::VhostUser { .. } => {
            // The server takes the first connection, which is made here.
            let socket = || {
                socket_with(
                    AddressFamily::UNIX,
                    SocketType::STREAM,
                    SocketFlags::CLOEXEC,
                    None,
                )
            };
            let listener = socket()?;
            bind(&listener, &SocketAddrUnix::new_unnamed())?;
            listen(&listener, 1)?;
            let client = socket()?;
            connect(&client, &getsockname(&listener)?)?;
            Ok((client, listener))
        }
    }
}

/// Returns how many files a server may watch: an eighth of the user's watches, which other programs need
/// too, and no more than [`WATCHES`].
fn watches() -> usize {
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches");
    let limit = limit.ok().and_then(|text| text.trim().parse().ok());
    limit.map_or(0, |limit: usize| (limit / 8).min(WATCHES))
}

fn describe(task: &Task) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("share", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(task)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// Runs the server. Returns its exit code.
fn work(descriptor: RawFd) -> i32 {
    match serve(descriptor) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("{why}");
            1
        }
    }
}

fn serve(descriptor: RawFd) -> Result<(), String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let take = |number| jail::take_inherited(number).map_err(failed("taking a descriptor"));
    let mut text = Vec::new();
    File::from(take(descriptor)?)
        .read_to_end(&mut text)
        .map_err(failed("reading what to serve"))?;
    let task: Task = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let (folder, socket, ready) = (take(task.folder)?, take(task.socket)?, take(task.ready)?);
    // No other sandbox may write to the folder for as long as this process can.
    let _lock = if task.upper {
        Some(folder.try_clone().map_err(failed("keeping the lock"))?)
    } else {
        None
    };
    let root = enter_folder(folder, task.read_only, task.with_mounts, task.as_it_is);
    let root = root.map_err(|error| error.to_string())?;
    let only = task.only.map(CString::new).transpose();
    let only = only.map_err(|error| error.to_string())?;
    let files = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS);
    let most = Most {
        places: usize::try_from(files / 2).unwrap_or(usize::MAX),
        watches: task.watches,
    };
    let manner = Manner {
        is_read_only: task.read_only,
        is_cached: task.cached,
        is_upper: task.upper,
        is_as_it_is: task.as_it_is,
    };
    let start = |table: Box<dyn Table>| -> Result<Arc<Server>, String> {
        let server = Server::new(root, only, manner, most, table);
        let server = server.map_err(|error| format!("opening the folder: {error}"))?;
        let server = Arc::new(server);
        if server.has_changes() {
            let server = Arc::clone(&server);
            std::thread::Builder::new()
                .name("changes".into())
                .spawn(move || server.follow())
                .map_err(failed("starting a thread"))?;
        }
        File::from(ready)
            .write_all(&[1])
            .map_err(failed("reporting"))?;
        Ok(server)
    };
    match task.transport {
        Transport::Stream => {
            let stream = UnixStream::from(socket);
            let writer = Writer::new(&stream).map_err(failed("sharing the stream"))?;
            let server = start(Box::new(writer.clone()))?;
            stream::serve(&server, stream, &writer)
        }
        Transport::VhostUser { .. } => {
            let memory = queues::Shared::new();
            let server = start(Box::new(memory.clone()))?;
            queues::serve(server, memory, UnixListener::from(socket))
        }
    }
    .map_err(failed("serving"))
}
