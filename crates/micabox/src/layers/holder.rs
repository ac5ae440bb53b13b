//! The process that serves an image's layers: one of this program's, in a session of its own.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use micabox_erofs::{BLOCK_SIZE, ReadAt};
use micabox_fuse::Channel;
use micabox_image::progress::Silent;
use micabox_image::store::{Image, Layer, LayerImage};
use micabox_image::{Digest, Store};
use micabox_jail::Kind;
use micabox_jail::container::tree::{Owners, Readers, mount_fuse};
use micabox_layerfs::Files;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{geteuid, setpriority_process};
use rustix::thread::gettid;
use serde::{Deserialize, Serialize};

use crate::holders::{self, Done};
use crate::owner::{receive, send};
use crate::{Error, history, own_process};

/// The kind of worker that serves layers.
pub(crate) const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "layers";

/// Most threads that serve.
const THREADS: usize = 8;

/// How long a client may take to receive its files: it waits for nothing else.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for room for one more client.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Of threads that let all others go first.
const LOWEST_PRIORITY: i32 = 19;

/// What the process gets, with its listening socket and a line to its starter. Its lock follows once it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) store: PathBuf,
    pub(super) directory: PathBuf,
    /// The digest of the image's manifest.
    pub(super) manifest: String,
    /// What the image is called.
    pub(super) name: String,
}

/// Starts the process, and waits until it serves clients.
pub(super) fn start(job: &Job, lock: &File, listener: UnixListener) -> io::Result<Done> {
    holders::start_process(NAME, "mica-layers", job, lock, listener, Vec::new())
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
    let (listener, starter) = (socket()?.into(), socket()?.into());
    let layers = match Layers::serve(&job) {
        Ok(layers) => layers,
        Err(problem) => return send(&connection, &Done::Err(problem), []),
    };
    send(&connection, &Done::Ok(()), [])?;
    let ((), _lock) = receive(&connection)?;
    drop(connection);
    let served = layers.give(&listener, starter);
    // Those that come now start another one.
    drop(listener);
    holders::remove(&job.store, &job.directory);
    served
}

/// Layers that are served.
struct Layers {
    /// The mount, which is nowhere.
    mount: OwnedFd,
    count: usize,
    files: Arc<Files<Padded>>,
    /// A byte comes when no file is open any more.
    unused: UnixStream,
    image: Image,
}

impl Layers {
    /// Mounts the filesystem, and serves it in threads.
    fn serve(job: &Job) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        // Before there are threads.
        let (mount, channels) = mount().map_err(|error| text(&error))?;
        let store = Store::open(&job.store).map_err(|error| text(&error))?;
        let digest = job.manifest.parse().map_err(|_| "no digest")?;
        let image = store
            .image_by_digest(&digest)
            .map_err(|error| text(&error))?;
        let layers = image.layers.iter().map(|layer| Padded::open(&store, layer));
        let layers: Result<Vec<_>, _> = layers.collect();
        let layers = layers.map_err(|error| text(&error))?;
        let (unused, wake) = UnixStream::pair().map_err(|error| text(&error))?;
        for socket in [&unused, &wake] {
            let set = socket.set_nonblocking(true);
            set.map_err(|error| text(&error))?;
        }
        let problems = Problems::of(&image, &job.name);
        let files = Files::new(
            layers,
            // If there is no room, enough of them wait to be read.
            move || _ = (&wake).write(&[1]),
            move |number, error| problems.note(number, error),
        );
        let files = Arc::new(files.map_err(|error| text(&error))?);
        let server = Arc::clone(&files);
        std::thread::spawn(move || {
            let channels: Vec<_> = channels.into_iter().map(Channel::new).collect();
            micabox_fuse::serve(&channels, &*server)
        });
        Ok(Self {
            mount,
            count: image.layers.len(),
            files,
            unused,
            image,
        })
    }

    /// Gives files to clients until none is open. The process that started this one may ask on `starter` whether it ends
    /// at once: a byte means that it does not.
    fn give(&self, listener: &UnixListener, starter: UnixStream) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut starter = Some(starter);
        let mut is_asked = false;
        let mut is_unpacking = false;
        loop {
            let has_room = loop {
                match listener.accept() {
                    Ok((client, _)) => {
                        // It may have gone.
                        let _ = self.give_to(&client);
                    }
                    Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
                }
            };
            if self.files.opened() == 0 {
                return Ok(());
            }
            if !is_unpacking {
                is_unpacking = true;
                self.unpack();
            }
            if is_asked && let Some(mut starter) = starter.take() {
                // It may have gone.
                let _ = starter.write(&[1]);
            }
            let polled = starter.iter().chain([&self.unused]).map(AsFd::as_fd);
            let polled = polled.chain(has_room.then(|| listener.as_fd()));
            let mut polled: Vec<PollFd<'_>> = polled
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
                .collect();
            rustix::io::retry_on_intr(|| poll(&mut polled, (!has_room).then_some(&PAUSE)))?;
            is_asked =
                starter.is_some() && polled.first().is_some_and(|it| !it.revents().is_empty());
            let _ = (&self.unused).read(&mut [0; 64]);
        }
    }

    fn give_to(&self, client: &UnixStream) -> io::Result<()> {
        client.set_write_timeout(Some(PATIENCE))?;
        let opened = (0..self.count).map(|number| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            openat(&self.mount, number.to_string(), flags, Mode::empty())
        });
        let files: Vec<File> = opened
            .map(|file| Ok(file?.into()))
            .collect::<io::Result<_>>()?;
        send(client, &(), &files)
    }

    /// Unpacks the image in a thread, so that others need no server. It ends with the process.
    fn unpack(&self) {
        let image = self.image.clone();
        std::thread::spawn(move || {
            // Of this thread alone.
            let _ = setpriority_process(Some(gettid()), LOWEST_PRIORITY);
            // It is as well served.
            let _ = image.store.unpack(&image, &Silent);
        });
    }
}

/// Notes what can't be read, once for each layer, where `mica events` shows it.
struct Problems {
    store: PathBuf,
    image: String,
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
            layers: layers.collect(),
        }
    }

    fn note(&self, number: usize, error: &io::Error) {
        if let Some((layer, is_noted)) = self.layers.get(number)
            && !is_noted.swap(true, Ordering::Relaxed)
        {
            let attributes = [("layer", layer.to_string()), ("error", error.to_string())];
            history::note_image(&self.store, &self.image, "read_error", &attributes);
        }
    }
}

/// A layer's image as its file has it: with zeros behind what is packed.
struct Padded {
    image: LayerImage,
    /// Bytes of the image.
    length: u64,
    /// Bytes of the file.
    size: u64,
}

impl Padded {
    fn open(store: &Store, layer: &Layer) -> Result<Self, Error> {
        let image = store.open_layer(layer)?;
        let length = image.size().map_err(|error| Error::ImageFile {
            path: layer.path.clone(),
            source: error.into(),
        })?;
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

/// Mounts a filesystem where nobody sees it. Returns the mount, and the kernel's channels.
fn mount() -> io::Result<(OwnedFd, Vec<OwnedFd>)> {
    let threads = available_parallelism().map_or(2, |count| count.get().clamp(2, THREADS));
    // A machine's worker may be another user, whom only root can let in: others see no filesystem that is of a user
    // namespace that they are not in.
    let (owners, readers) = match geteuid().is_root() {
        true => (Owners::Machine, Readers::All),
        false => (Owners::One, Readers::Owner),
    };
    let space = owners.start(|inside| {
        let mounted = mount_fuse(threads, readers);
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
