//! Opens an image's layers, whole or not.
//!
//! A layer that is packed, or of which only a part is here, has no file that a machine could map. A process of its own
//! ([`holder`]) serves such layers in two ways. By FUSE they are files: who gets their descriptors uses them as any others.
//! Where a reader can ask for what it reads, they are sparse files, and no FUSE is needed. Both ways the kernel caches what
//! was read once for all machines. Meanwhile the process makes the image whole, for those that come later. It ends when
//! that is done and no process uses its files any more.

mod holder;
mod missing;

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use micabox_error::Error;
use micabox_image::progress::Silent;
use micabox_image::store::Image;
use micabox_image::{Digest, Store};
use micabox_layerfs::ask::Asker;
use micabox_state::Lock;
use micabox_vmm::Part;
use rustix::process::{getegid, geteuid};
use tracing::info;

use crate::holder::{Holders, Wanted, name, not_served, shown};
use crate::own_process::Environment;
use crate::served::{self, Greeting};

pub use holder::KIND;

/// A layer that is open.
pub(crate) struct Opened {
    pub(crate) file: File,
    /// What its server has of it, if it has one.
    pub(crate) part: Option<Part>,
}

/// Opens the layers of an image for a reader that asks for what it reads, where they are not whole.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_parts(image: &Image) -> Result<Vec<Opened>, Error> {
    image.store.note_use(image);
    let server = if is_whole(image) {
        None
    } else {
        serve(image).map_or_else(
            |error| instead(image, error).map(|()| None),
            |it| Ok(Some(it)),
        )?
    };
    let opened = image.layers.iter().zip(0..).map(|(layer, number)| {
        let whole = File::open(&layer.path);
        let Some(server) = server.as_ref().filter(|_| is_missing(&whole)) else {
            let file = whole.map_err(|source| unusable(&layer.path, source))?;
            return Ok(Opened { file, part: None });
        };
        let fused = server.files.as_ref().ok();
        // Another group may be as another user to FUSE.
        let fused = fused
            .and_then(|files| files.get(number as usize))
            .filter(|file| file.metadata().is_ok());
        let part = Part {
            server: image.manifest_digest.to_string(),
            number,
            is_readable: fused.is_some(),
        };
        let file = match fused {
            Some(file) => file.try_clone(),
            None => head(&server.asker, number),
        };
        let file = file.map_err(|source| unusable(&layer.path, source))?;
        let part = Some(part);
        Ok(Opened { file, part })
    });
    opened.collect()
}

/// Returns a layer's sparse file, with what its check reads.
fn head(asker: &Asker, number: u32) -> io::Result<File> {
    let opened = asker.open(number)?;
    asker.bring(number, 0..1)?;
    opened.file.try_clone()
}

/// Connects to the server of an image's layers, which is started if it has ended.
///
/// # Errors
/// Those of finding the image, and of the server.
pub fn connect(store: &Store, image: &str) -> Result<UnixStream, Error> {
    let digest = image.parse();
    let digest = digest.map_err(|_| Error::NotServed {
        tree: image.to_owned(),
        problem: "it is no digest".to_owned(),
    })?;
    let image = store.image_by_digest(&digest)?;
    Holders::of(store)?.hold(&Asked(Served(&image)))
}

fn is_missing(opened: &io::Result<File>) -> bool {
    matches!(opened, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

fn unusable(path: &Path, source: io::Error) -> Error {
    Error::ImageFile {
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Makes an image whole whose layers can't be served.
fn instead(image: &Image, error: Error) -> Result<(), Error> {
    match error {
        // It waits for a registry: this process would wait as well.
        error @ Error::HolderStuck(_) if image.is_lazy() => Err(error),
        error => {
            info!(image = shown(image), %error, "layers can't be served: making them whole");
            make_whole(image)
        }
    }
}

/// Opens the layers of an image for reading. Those that are packed are served; where they can't be, as without FUSE,
/// they are unpacked first.
///
/// # Errors
/// [`Error::ImageFile`]; the store's.
pub fn open(image: &Image) -> Result<Vec<File>, Error> {
    let store = &image.store;
    store.note_use(image);
    let mut served = Vec::new();
    if !is_whole(image) {
        match serve(image).and_then(|server| by_fuse(image, server)) {
            Ok(files) => served = files,
            Err(error) => instead(image, error)?,
        }
    }
    let mut served = served.into_iter();
    let layers = image.layers.iter();
    let opened = layers.map(|layer| {
        let served = served.next();
        match (File::open(&layer.path), served) {
            (whole, Some(served)) if is_missing(&whole) => Ok(served),
            (whole, _) => whole.map_err(|source| unusable(&layer.path, source)),
        }
    });
    opened.collect()
}

/// Returns whether each of an image's layers has a file of its own.
pub fn is_whole(image: &Image) -> bool {
    let mut layers = image.layers.iter();
    layers.all(|layer| image.store.is_whole(layer))
}

/// Returns whether this user's settings have images and memories become whole once they are used, as those without a file
/// of settings do.
pub fn completes_in_background() -> bool {
    missing::completes_in_background()
}

/// Makes a file of each of an image's layers: those that are packed are unpacked, and of those of which only a part is
/// here the rest is fetched.
///
/// # Errors
/// The store's; [`Error::Incomplete`].
pub fn make_whole(image: &Image) -> Result<(), Error> {
    image.store.unpack(image, &Silent)?;
    if image.is_lazy() {
        missing::complete(image)?;
    }
    Ok(())
}

/// Returns what the server of an image's layers gives, which is started if there is none.
fn serve(image: &Image) -> Result<Greeting, Error> {
    Holders::of(&image.store)?.hold(&Served(image))
}

/// Returns the files that a server gives by FUSE.
fn by_fuse(image: &Image, server: Greeting) -> Result<Vec<File>, Error> {
    let files = server.files;
    let files = files.map_err(|problem| not_served(image, problem))?;
    if files.len() != image.layers.len() {
        return Err(not_served(image, "its server has other layers"));
    }
    for file in &files {
        // Another group may be as another user to FUSE.
        let seen = file.metadata();
        seen.map_err(|error| not_served(image, error))?;
    }
    Ok(files)
}

/// What a holder is made for.
struct Served<'a>(&'a Image);

impl Wanted for Served<'_> {
    type Held = Greeting;

    /// This user and group, to whom alone FUSE shows the files, and the image.
    fn id(&self) -> io::Result<String> {
        let user = geteuid().as_raw().to_le_bytes();
        let group = getegid().as_raw().to_le_bytes();
        let image = self.0.manifest_digest.to_string();
        Ok(name(&[b"layers", &user, &group, image.as_bytes()]))
    }

    fn shown(&self) -> String {
        shown(self.0)
    }

    fn images(&self) -> Vec<Digest> {
        vec![self.0.manifest_digest]
    }

    fn start(&self, directory: &Path, listener: UnixListener, lock: &Lock) -> Result<(), Error> {
        let job = served::Job {
            store: self.0.store.root().to_owned(),
            directory: directory.to_owned(),
            of: holder::Job {
                manifest: self.0.manifest_digest.to_string(),
                name: shown(self.0),
                is_lazy: self.0.is_lazy(),
                completes_in_background: completes_in_background(),
            },
        };
        let environment = if self.0.is_lazy() {
            Environment::All
        } else {
            Environment::Programs
        };
        match holder::start(&job, environment, lock.file(), listener) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(problem)) => Err(not_served(self.0, problem)),
            Err(source) => Err(Error::System {
                what: "starting the server of layers",
                source,
            }),
        }
    }

    fn greeted(&self, connection: UnixStream) -> io::Result<Self::Held> {
        served::greeting(connection)
    }
}

/// The same, of which only the connection is wanted.
struct Asked<'a>(Served<'a>);

impl Wanted for Asked<'_> {
    type Held = UnixStream;

    fn id(&self) -> io::Result<String> {
        self.0.id()
    }

    fn shown(&self) -> String {
        self.0.shown()
    }

    fn images(&self) -> Vec<Digest> {
        self.0.images()
    }

    fn start(&self, directory: &Path, listener: UnixListener, lock: &Lock) -> Result<(), Error> {
        self.0.start(directory, listener, lock)
    }

    fn greeted(&self, connection: UnixStream) -> io::Result<UnixStream> {
        served::connected(connection)
    }
}
