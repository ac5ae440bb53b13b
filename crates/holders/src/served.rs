//! A process that serves files to this user's machines: one of this program's, in a session of its own, found as every
//! [holder](crate::Holders) is. It has two faces. By FUSE a client gets descriptors that it reads as any others. Over its
//! connection a client asks for [pieces](micabox_layerfs::ask) of sparse files. Meanwhile the process makes what it serves
//! whole, so that those that come later need no server. It ends when that is over, none of its files is open by FUSE in any
//! process, and no client is connected.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use micabox_fuse::Channel;
use micabox_jail::container::tree::{Owners, Readers, mount_fuse};
use micabox_layerfs::ask::{self, Asker};
use micabox_layerfs::{Files, Parts, Source};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat, statvfs};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setpriority_process, setrlimit};
use rustix::thread::gettid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::holder::{self, Done, PATIENCE as GREETING};
use crate::message::{receive, send};
use crate::own_process;

/// Most threads that serve.
const THREADS: usize = 8;

/// Threads that serve where each may wait for a registry: what is here is read meanwhile. The kernel reads ahead in fewer
/// of them.
const WAITING: usize = 32;

/// How long a client may take to receive its greeting.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for room for one more client, and for the last file to be closed.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// How long the starter's question stays open for the last files to be closed.
const MOMENT: Duration = Duration::from_millis(40);

/// The priority of a thread that others of this process go before.
const LOW_PRIORITY: i32 = 10;

/// For how long nothing must be read, after the first read, before what is served is made whole: a program that starts
/// needs the processors.
const QUIET: Duration = Duration::from_millis(500);

/// How long the thread that does so waits for that at most.
const LATEST: Duration = Duration::from_secs(20);

/// The part of the disk that stays free: a twentieth.
const RESERVE: u64 = 20;

/// What the process gets, with its listening socket and a line to its starter. Its lock follows once it serves.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job<J> {
    /// The store.
    pub store: PathBuf,
    /// The holder's directory.
    pub directory: PathBuf,
    /// What it serves.
    pub of: J,
}

/// What is done beside serving.
pub struct Work {
    /// Keeps what is known of the reads so far. Done once nothing was read for a while, and each time that nothing is in use
    /// any more: a machine that starts slowly reads nothing for a while, too.
    pub note: Arc<dyn Fn() + Send + Sync>,
    /// Makes what is served whole. Done once nothing was read for a while.
    pub complete: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

/// Runs as such a process. `serve` makes the files, and the work that makes what they are of whole.
///
/// # Errors
/// Those of connections, and of waiting.
pub fn run<J: DeserializeOwned, S: Source + Send + Sync + 'static>(
    serve: impl FnOnce(&Job<J>) -> Result<(Served<S>, Work), String>,
) -> io::Result<()> {
    let (connection, job, files) = own_process::begin::<Job<J>>()?;
    // What it serves may have many files.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    let mut files = files.into_iter();
    let mut socket = || files.next().ok_or(io::ErrorKind::InvalidData);
    let (listener, starter) = (socket()?.into(), socket()?.into());
    let served = serve(&job);
    // It keeps no directory busy. What it was started with may be relative to one.
    rustix::process::chdir("/")?;
    let (served, work) = match served {
        Ok(served) => served,
        Err(problem) => return send(&connection, &Done::Err(problem), []),
    };
    send(&connection, &Done::Ok(()), [])?;
    let ((), _lock) = receive(&connection)?;
    drop(connection);
    let given = served.give(&listener, starter, work);
    // Those that come now start another one.
    drop(listener);
    holder::remove(&job.store, &job.directory);
    given
}

/// What such a process gives to a new client.
#[derive(Debug)]
pub struct Greeting {
    /// Its files, by FUSE; or why there are none.
    pub files: Result<Vec<File>, String>,
    /// What asks for pieces of them.
    pub asker: Asker,
}

/// Receives what such a process gives to a new client.
///
/// # Errors
/// Those of the connection: the process has ended.
pub fn greeting(connection: UnixStream) -> io::Result<Greeting> {
    let (given, mount) = given(&connection)?;
    let opened = given.mount.map(|()| -> io::Result<Vec<File>> {
        let mount = mount.first().ok_or(io::ErrorKind::InvalidData)?;
        let opened = (0..given.count).map(|number| -> io::Result<File> {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Ok(openat(mount, number.to_string(), flags, Mode::empty())?.into())
        });
        opened.collect()
    });
    let files = match opened {
        Ok(Ok(files)) => Ok(files),
        // The process has ended: another one may give them.
        Ok(Err(error)) if is_gone(&error) => return Err(error),
        Ok(Err(error)) => Err(error.to_string()),
        Err(problem) => Err(problem),
    };
    let asker = Asker::new(connection);
    Ok(Greeting { files, asker })
}

/// Receives the greeting, of which only the connection is used from then on, by [`Asker`].
///
/// # Errors
/// Those of the connection: the process has ended.
pub fn connected(connection: UnixStream) -> io::Result<UnixStream> {
    given(&connection)?;
    Ok(connection)
}

fn given(connection: &UnixStream) -> io::Result<(Given, Vec<OwnedFd>)> {
    connection.set_read_timeout(Some(GREETING))?;
    let given = receive::<Given>(connection)?;
    connection.set_read_timeout(None)?;
    Ok(given)
}

/// Returns whether an error is that of a FUSE filesystem whose server has ended.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, NotConnected};
    matches!(error.kind(), ConnectionAborted | NotConnected)
}

/// What a client is given first.
#[derive(Debug, Serialize, Deserialize)]
struct Given {
    /// The number of files. By FUSE their names are 0 and so on.
    count: usize,
    /// Whether the FUSE filesystem comes with it, or why it does not.
    mount: Result<(), String>,
}

/// A FUSE filesystem that nothing serves yet.
#[derive(Debug)]
pub struct Mount {
    /// The mount, which is attached to no directory.
    mount: OwnedFd,
    /// The kernel's channels, one for each thread.
    channels: Vec<OwnedFd>,
}

impl Mount {
    /// Makes one, which must be done before there are threads. With `is_far`, reads may wait for a registry.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(is_far: bool) -> io::Result<Self> {
        let threads = if is_far {
            WAITING
        } else {
            available_parallelism().map_or(2, |count| count.get().clamp(2, THREADS))
        };
        // A machine's worker may be another user, whom only root can let in: others see no filesystem that is of a user
        // namespace that they are not in.
        if geteuid().is_root() {
            let tree = mount_fuse(threads, Readers::All)?;
            return Ok(Self {
                mount: tree.mount,
                channels: tree.channels,
            });
        }
        let space = Owners::One.start(|inside| {
            let mounted = mount_fuse(threads, Readers::Owner);
            let done: Done = mounted.as_ref().map(drop).map_err(ToString::to_string);
            let mounted = mounted.ok();
            let files = mounted.into_iter().flat_map(|tree| {
                let channels = tree.channels.into_iter();
                std::iter::once(tree.mount).chain(channels).map(File::from)
            });
            send(&inside.channel, &done, &files.collect::<Vec<_>>())
        });
        let space = space.map_err(io::Error::other)?;
        let (done, files) = receive::<Done>(&space.channel)?;
        space.wait();
        done.map_err(io::Error::other)?;
        let mut files = files.into_iter();
        let mount = files.next().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            mount,
            channels: files.collect(),
        })
    }
}

/// Files that are served.
pub struct Served<S> {
    /// None where there is no FUSE.
    mount: Result<File, String>,
    count: usize,
    files: Arc<Files<S>>,
    parts: Arc<Parts<S>>,
    clients: Arc<Clients>,
    /// A byte comes when no file is open any more, when a client has gone, and when the work is over.
    news: UnixStream,
    wake: Arc<UnixStream>,
}

impl<S: Source + Send + Sync + 'static> Served<S> {
    /// Serves sources in threads, by FUSE if there is a mount. Sparse files are made in a directory, and have no name
    /// there. `failed` is called with the number of a file and the error of a read.
    ///
    /// # Errors
    /// Those of threads and sockets, and of the sources' lengths.
    pub fn new(
        mount: io::Result<Mount>,
        directory: &Path,
        sources: Vec<S>,
        failed: impl Fn(usize, &io::Error) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let count = sources.len();
        let (news, wake) = UnixStream::pair()?;
        for socket in [&news, &wake] {
            socket.set_nonblocking(true)?;
        }
        let wake = Arc::new(wake);
        let unused = Arc::clone(&wake);
        let files = Arc::new(Files::new(sources, move || send_news(&unused), failed)?);
        let server = Arc::clone(&files);
        let serve = |Mount { mount, channels }: Mount| -> io::Result<File> {
            std::thread::Builder::new().spawn(move || {
                let channels: Vec<_> = channels.into_iter().map(Channel::new).collect();
                let _ = micabox_fuse::serve(&channels, &*server);
                // The kernel fails all reads once this process has ended, and its channels with it.
                std::process::exit(1)
            })?;
            Ok(mount.into())
        };
        let mount = match mount {
            Ok(mount) => Ok(serve(mount)?),
            Err(error) => Err(error.to_string()),
        };
        Ok(Self {
            mount,
            count,
            // The process leaves the directory that this may be relative to.
            parts: Arc::new(Parts::new(
                Arc::clone(&files),
                &std::path::absolute(directory)?,
            )),
            clients: Arc::new(Clients {
                count: AtomicUsize::new(0),
                wake: Arc::clone(&wake),
            }),
            files,
            news,
            wake,
        })
    }

    /// Serves clients until none is connected, no file is open, and the work is over. The process that started this one may ask on
    /// `starter` whether it ends at once: a byte means that it does not.
    fn give(&self, listener: &UnixListener, starter: UnixStream, work: Work) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut starter = Some(starter);
        let mut asked = None::<Instant>;
        let note = Arc::clone(&work.note);
        let (mut work, mut over) = (Some(work), None::<Arc<AtomicBool>>);
        let mut begin = || {
            work.take()
                .map_or_else(Arc::default, |work| self.begin(work))
        };
        loop {
            let has_room = loop {
                match listener.accept() {
                    Ok((client, _)) => {
                        self.give_to(client);
                        over.get_or_insert_with(&mut begin);
                    }
                    Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
                }
            };
            let is_open = self.is_used();
            if !is_open {
                note();
            }
            let is_over = |over: &Arc<AtomicBool>| over.load(Ordering::SeqCst);
            if !is_open && over.as_ref().is_none_or(is_over) {
                return Ok(());
            }
            let is_over = is_over(over.get_or_insert_with(&mut begin));
            // That the last files were closed, the kernel tells a moment later.
            if let Some(since) = asked
                && (!is_over || since.elapsed() > MOMENT)
                && let Some(mut starter) = starter.take()
            {
                // It may have gone.
                let _ = starter.write(&[1]);
                asked = None;
            }
            let polled = starter.iter().chain([&self.news]).map(AsFd::as_fd);
            let polled = polled.chain(has_room.then(|| listener.as_fd()));
            // A question is there until it is answered.
            let skipped = usize::from(asked.is_some());
            let mut polled: Vec<PollFd<'_>> = polled
                .skip(skipped)
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
                .collect();
            let limit = (asked.is_some() || !has_room).then_some(&PAUSE);
            rustix::io::retry_on_intr(|| poll(&mut polled, limit))?;
            let is_asked = polled.first().is_some_and(|it| !it.revents().is_empty());
            if asked.is_none() && starter.is_some() && is_asked {
                asked = Some(Instant::now());
            }
            let _ = (&self.news).read(&mut [0; 64]);
        }
    }

    /// Gives the filesystem to a client, which opens the files itself, and answers it until it closes its connection, in a
    /// thread. What this process opened and closed would be requests to threads of its own. If it were killed meanwhile,
    /// the kernel would wait for answers, with the channels open that these are to come from: this process and all readers
    /// of its files would hang for ever.
    fn give_to(&self, client: UnixStream) {
        let (parts, connected) = (Arc::clone(&self.parts), Clients::one(&self.clients));
        let mount = self.mount.as_ref().map(File::try_clone);
        let mount = mount.map_err(Clone::clone);
        let count = self.count;
        let give = move || -> io::Result<()> {
            let _connected = connected;
            let (mount, given) = match mount {
                Ok(mount) => (Some(mount?), Ok(())),
                Err(problem) => (None, Err(problem)),
            };
            client.set_write_timeout(Some(PATIENCE))?;
            let given = Given {
                count,
                mount: given,
            };
            send(&client, &given, &mount)?;
            drop(mount);
            ask::serve(&parts, client)
        };
        // It may have gone, and have closed its files already.
        let thread = std::thread::Builder::new().name("client".into());
        let _ = thread.spawn(give);
    }

    /// Returns whether any process has a file open or may ask for pieces of one.
    fn is_used(&self) -> bool {
        self.files.open_count() > 0 || self.clients.count.load(Ordering::SeqCst) > 0
    }

    /// Does the work in a thread, once nothing was read for a while. What it returns is true when that is over.
    fn begin(&self, work: Work) -> Arc<AtomicBool> {
        let over = Arc::<AtomicBool>::default();
        let (its_over, files, wake) = (
            Arc::clone(&over),
            Arc::clone(&self.files),
            Arc::clone(&self.wake),
        );
        let (parts, clients) = (Arc::clone(&self.parts), Arc::clone(&self.clients));
        let reads = move || files.reads() + parts.asked();
        let files = Arc::clone(&self.files);
        let is_used = move || files.open_count() > 0 || clients.count.load(Ordering::SeqCst) > 0;
        let thread = std::thread::Builder::new().spawn(move || {
            // Of this thread alone, and those that it starts.
            let _ = setpriority_process(Some(gettid()), LOW_PRIORITY);
            let latest = Instant::now() + LATEST;
            loop {
                let before = reads();
                std::thread::sleep(QUIET);
                let is_quiet = before > 0 && reads() == before;
                if is_quiet || !is_used() || Instant::now() >= latest {
                    break;
                }
            }
            (work.note)();
            (work.complete)();
            its_over.store(true, Ordering::SeqCst);
            send_news(&wake);
        });
        if thread.is_err() {
            over.store(true, Ordering::SeqCst);
        }
        over
    }
}

impl<S> fmt::Debug for Served<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// The clients that are connected.
struct Clients {
    count: AtomicUsize,
    wake: Arc<UnixStream>,
}

/// One of them.
struct Connected(Arc<Clients>);

impl Clients {
    fn one(clients: &Arc<Self>) -> Connected {
        clients.count.fetch_add(1, Ordering::SeqCst);
        Connected(Arc::clone(clients))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        send_news(&self.0.wake);
    }
}

/// Wakes the thread that waits for news. If there is no room, enough of them wait to be read.
fn send_news(mut wake: &UnixStream) {
    let _ = wake.write(&[1]);
}

/// Returns whether the disk of a store keeps a reserve if so many bytes are written to it: what is done in the background
/// must not fill it.
pub fn has_room(store: &Path, bytes: u64) -> bool {
    statvfs(store).is_ok_and(|disk| {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let all = disk.f_blocks.saturating_mul(disk.f_frsize);
        free.saturating_sub(bytes) > all / RESERVE
    })
}
