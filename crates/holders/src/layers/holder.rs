//! The process that serves an image's layers: one of this program's, in a session of its own.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use micabox_erofs::{BLOCK_SIZE, ReadAt};
use micabox_error::{Error, Source};
use micabox_fuse::Channel;
use micabox_image::store::{Cache, Image, Layer};
use micabox_image::{Digest, Store};
use micabox_jail::Kind;
use micabox_jail::container::tree::{Owners, Readers, mount_fuse};
use micabox_layerfs::Files;
use micabox_state::note_image;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat, statvfs};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setpriority_process, setrlimit};
use rustix::thread::gettid;
use serde::{Deserialize, Serialize};

use super::missing::Missing;
use crate::holder::{self, Done};
use crate::message::{receive, send};
use crate::own_process;
use crate::own_process::Environment;

/// The kind of worker that serves layers.
pub const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "layers";

/// Most threads that serve.
const THREADS: usize = 8;

/// Threads that serve where each may wait for a registry: what is here is read meanwhile. The kernel reads ahead in fewer
/// of them.
const WAITING: usize = 32;

/// How long a client may take to receive its files: it waits for nothing else.
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

/// For how long nothing must be read before the image is unpacked: a program that starts needs the processors.
const QUIET: Duration = Duration::from_millis(500);

/// How long the thread that unpacks waits for that at most.
const LATEST: Duration = Duration::from_secs(20);

/// The part of the disk that stays free: a twentieth.
const RESERVE: u64 = 20;

/// What the process gets, with its listening socket and a line to its starter. Its lock follows once it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) store: PathBuf,
    pub(super) directory: PathBuf,
    /// The digest of the image's manifest.
    pub(super) manifest: String,
    /// What the image is called.
    pub(super) name: String,
    /// Whether reads may wait for a registry.
    pub(super) is_lazy: bool,
}

/// Starts the process, and waits until it serves clients.
pub(super) fn start(
    job: &Job,
    environment: Environment,
    lock: &File,
    listener: UnixListener,
) -> io::Result<Done> {
    let files = Vec::new();
    holder::start_process(NAME, "mica-layers", environment, job, lock, listener, files)
}

fn work(_: RawFd) -> i32 {
    let ran = run();
    own_process::end();
    i32::from(ran.is_err())
}

fn run() -> io::Result<()> {
    let (connection, job, files) = own_process::begin::<Job>()?;
    // Each layer has its packs open.
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
    let served = Layers::serve(&job);
    // It keeps no directory busy. What it was started with may be relative to one.
    rustix::process::chdir("/")?;
    let layers = match served {
        Ok(layers) => layers,
        Err(problem) => return send(&connection, &Done::Err(problem), []),
    };
    send(&connection, &Done::Ok(()), [])?;
    let ((), _lock) = receive(&connection)?;
    drop(connection);
    let served = layers.give(&listener, starter);
    // Those that come now start another one.
    drop(listener);
    holder::remove(&job.store, &job.directory);
    served
}

/// Layers that are served.
struct Layers {
    /// The mount, which is attached to no directory.
    mount: OwnedFd,
    count: usize,
    files: Arc<Files<Padded>>,
    /// A byte comes when no file is open any more, and when the image is unpacked.
    news: UnixStream,
    wake: Arc<UnixStream>,
    image: Image,
    /// What the image is called.
    name: String,
    missing: Arc<Missing>,
}

impl Layers {
    /// Mounts the filesystem, and serves it in threads.
    fn serve(job: &Job) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        // Before there are threads.
        let threads = if job.is_lazy {
            WAITING
        } else {
            available_parallelism().map_or(2, |count| count.get().clamp(2, THREADS))
        };
        let (mount, channels) = mount(threads).map_err(|error| text(&error))?;
        let store = Store::open(&job.store).map_err(|error| text(&error))?;
        let digest = job.manifest.parse().map_err(|_| "no digest")?;
        let image = store
            .image_by_digest(&digest)
            .map_err(|error| text(&error))?;
        let cache = Arc::default();
        let missing = Missing::of(&image).map_err(|error| text(&error))?;
        let layers = image.layers.iter().enumerate();
        let layers = layers.map(|(number, layer)| match missing.layer(number) {
            Some(lazy) => Padded::new(layer, Box::new(Arc::clone(lazy))),
            None => Padded::open(&store, layer, &cache),
        });
        let layers: Result<Vec<_>, _> = layers.collect();
        let layers = layers.map_err(|error| text(&error))?;
        let (news, wake) = UnixStream::pair().map_err(|error| text(&error))?;
        for socket in [&news, &wake] {
            let set = socket.set_nonblocking(true);
            set.map_err(|error| text(&error))?;
        }
        let wake = Arc::new(wake);
        let unused = Arc::clone(&wake);
        let problems = Problems::of(&image, &job.name);
        let files = Files::new(
            layers,
            move || send_news(&unused),
            move |number, error| problems.note(number, error),
        );
        let files = Arc::new(files.map_err(|error| text(&error))?);
        let server = Arc::clone(&files);
        let serving = std::thread::Builder::new().spawn(move || {
            let channels: Vec<_> = channels.into_iter().map(Channel::new).collect();
            let _ = micabox_fuse::serve(&channels, &*server);
            // The kernel fails all reads once this process has ended, and its channels with it.
            std::process::exit(1)
        });
        serving.map_err(|error| text(&error))?;
        if let Some(order) = store.start_order(&digest) {
            missing.prefetch(&order);
        }
        Ok(Self {
            mount,
            count: image.layers.len(),
            files,
            news,
            wake,
            image,
            name: job.name.clone(),
            missing: Arc::new(missing),
        })
    }

    /// Gives files to clients until none is open, and the image is unpacked. The process that started this one may ask on
    /// `starter` whether it ends at once: a byte means that it does not.
    fn give(&self, listener: &UnixListener, starter: UnixStream) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut starter = Some(starter);
        let mut asked = None::<Instant>;
        let mut unpacking = None::<Arc<AtomicBool>>;
        loop {
            let has_room = loop {
                match listener.accept() {
                    Ok((client, _)) => {
                        // It may have gone, and have closed its files already.
                        let _ = self.give_to(&client);
                        unpacking.get_or_insert_with(|| self.unpack());
                    }
                    Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
                }
            };
            let is_open = self.files.open_count() > 0;
            let is_whole = |over: &Arc<AtomicBool>| over.load(Ordering::SeqCst);
            if !is_open && unpacking.as_ref().is_none_or(is_whole) {
                return Ok(());
            }
            let is_whole = is_whole(unpacking.get_or_insert_with(|| self.unpack()));
            // That the last files were closed, the kernel tells a moment later.
            if let Some(since) = asked
                && (!is_whole || since.elapsed() > MOMENT)
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

    fn give_to(&self, client: &UnixStream) -> io::Result<()> {
        client.set_write_timeout(Some(PATIENCE))?;
        let opened = (0..self.count).map(|number| -> io::Result<File> {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Ok(openat(&self.mount, number.to_string(), flags, Mode::empty())?.into())
        });
        match opened.collect::<io::Result<Vec<File>>>() {
            Ok(files) => send(client, &Done::Ok(()), &files),
            Err(error) => send(client, &Done::Err(error.to_string()), []),
        }
    }

    /// Makes the image whole in a thread, so that later machines need no server. What it returns is true when that is over.
    fn unpack(&self) -> Arc<AtomicBool> {
        let over = Arc::<AtomicBool>::default();
        let missing = Arc::clone(&self.missing);
        let name = self.name.clone();
        let its_over = Arc::clone(&over);
        let (image, files, wake) = (
            self.image.clone(),
            Arc::clone(&self.files),
            Arc::clone(&self.wake),
        );
        let thread = std::thread::Builder::new().spawn(move || {
            // Of this thread alone.
            let _ = setpriority_process(Some(gettid()), LOW_PRIORITY);
            let latest = Instant::now() + LATEST;
            loop {
                let before = files.reads();
                std::thread::sleep(QUIET);
                if files.reads() == before || files.open_count() == 0 || Instant::now() >= latest {
                    break;
                }
            }
            missing.keep_order(&image);
            // Without it, the image stays as it is.
            if has_room(&image)
                && let Err(error) = super::make_whole(&image)
            {
                let attributes = [
                    ("digest", image.manifest_digest.to_string()),
                    ("error", error.to_string()),
                ];
                note_image(image.store.root(), &name, "incomplete", &attributes);
            }
            its_over.store(true, Ordering::SeqCst);
            send_news(&wake);
        });
        if thread.is_err() {
            over.store(true, Ordering::SeqCst);
        }
        over
    }
}

/// Returns whether the disk keeps a reserve if an image is made whole there: what is done in the background must not fill
/// it.
fn has_room(image: &Image) -> bool {
    let layers = image.layers.iter();
    let needed = layers.map(|layer| {
        if image.store.is_whole(layer) {
            0
        } else if image.store.is_lazy(layer) {
            // Its blob is there as well until the layer is published.
            layer.image_size().saturating_mul(2)
        } else {
            layer.image_size()
        }
    });
    let needed: u64 = needed.sum();
    statvfs(image.store.root()).is_ok_and(|disk| {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let all = disk.f_blocks.saturating_mul(disk.f_frsize);
        free.saturating_sub(needed) > all / RESERVE
    })
}

/// Wakes the thread that waits for news. If there is no room, enough of them wait to be read.
fn send_news(mut wake: &UnixStream) {
    let _ = wake.write(&[1]);
}

/// Notes what can't be read, once for each layer, where `mica events` shows it.
struct Problems {
    store: PathBuf,
    image: String,
    /// That of its manifest.
    digest: String,
    /// Each layer's diff ID, and whether its first problem was noted.
    layers: Vec<(Digest, AtomicBool)>,
}

impl Problems {
    fn of(image: &Image, name: &str) -> Self {
        let layers = image.layers.iter();
        let layers = layers.map(|layer| (layer.diff_id, AtomicBool::new(false)));
        Self {
            store: image.store.root().to_owned(),
            image: name.to_owned(),
            digest: image.manifest_digest.to_string(),
            layers: layers.collect(),
        }
    }

    fn note(&self, number: usize, error: &io::Error) {
        if let Some((layer, is_noted)) = self.layers.get(number)
            && !is_noted.swap(true, Ordering::Relaxed)
        {
            let attributes = [
                ("digest", self.digest.clone()),
                ("layer", layer.to_string()),
                ("error", error.to_string()),
            ];
            note_image(&self.store, &self.image, "read_error", &attributes);
        }
    }
}

/// A layer's image as its file has it: with zeros behind what is packed.
struct Padded {
    image: Box<dyn ReadAt + Send + Sync>,
    /// Bytes of the image.
    length: u64,
    /// Bytes of the file.
    size: u64,
}

impl Padded {
    fn open(store: &Store, layer: &Layer, cache: &Arc<Cache>) -> Result<Self, Error> {
        let image = store.open_layer(layer)?.with_cache(cache);
        Self::new(layer, Box::new(image))
    }

    fn new(layer: &Layer, image: Box<dyn ReadAt + Send + Sync>) -> Result<Self, Error> {
        let unusable = |source: Source| Error::ImageFile {
            path: layer.path.clone(),
            source,
        };
        let length = image.size().map_err(|error| unusable(error.into()))?;
        if length < layer.image_size() {
            return Err(unusable("its chunks are of a shorter image".into()));
        }
        Ok(Self {
            image,
            length,
            size: layer.blocks.saturating_mul(BLOCK_SIZE),
        })
    }
}

impl ReadAt for Padded {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let packed = self.length.saturating_sub(offset).min(buffer.len() as u64);
        let (packed, padding) = buffer.split_at_mut(packed as usize);
        padding.fill(0);
        self.image.read_exact_at(packed, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }
}

/// Makes a mount that is attached to no directory. Returns it, and the kernel's channels, one for each thread.
fn mount(threads: usize) -> io::Result<(OwnedFd, Vec<OwnedFd>)> {
    // A machine's worker may be another user, whom only root can let in: others see no filesystem that is of a user
    // namespace that they are not in.
    if geteuid().is_root() {
        let tree = mount_fuse(threads, Readers::All)?;
        return Ok((tree.mount, tree.channels));
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
    Ok((mount, files.collect()))
}
