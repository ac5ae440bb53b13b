//! Opens an image's layers, whole or not.
//!
//! A layer that is packed, or of which only a part is here, has no file that a machine could map. A process of its own
//! ([`holder`]) serves such layers as files by FUSE: a machine gets their descriptors and uses them as any others, so the
//! kernel caches what was read once for all machines. Meanwhile the process makes the image whole, for those that come
//! later. It ends when that is done and none of its files is open any more, in any process.

mod holder;
mod missing;

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use micabox_error::Error;
use micabox_image::progress::Silent;
use micabox_image::store::Image;
use micabox_state::Lock;
use rustix::process::{getegid, geteuid};
use tracing::info;

use crate::holder::{Done, Holders, PATIENCE, Wanted, name, not_served, shown};
use crate::message::receive;
use crate::own_process::Environment;

pub use holder::KIND;

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
        match serve(image) {
            Ok(files) => served = files,
            // It waits for a registry: this process would wait as well.
            Err(error @ Error::HolderStuck(_)) if image.is_lazy() => return Err(error),
            Err(error) => {
                info!(image = shown(image), %error, "layers can't be served: making them whole");
                make_whole(image)?;
            }
        }
    }
    let mut served = served.into_iter();
    let layers = image.layers.iter();
    let opened = layers.map(|layer| {
        let served = served.next();
        match (File::open(&layer.path), served) {
            (Ok(whole), _) => Ok(whole),
            (Err(error), Some(served)) if error.kind() == io::ErrorKind::NotFound => Ok(served),
            (Err(error), _) => Err(Error::ImageFile {
                path: layer.path.clone(),
                source: error.into(),
            }),
        }
    });
    opened.collect()
}

/// Returns whether each of an image's layers has a file of its own.
pub fn is_whole(image: &Image) -> bool {
    let mut layers = image.layers.iter();
    layers.all(|layer| image.store.is_whole(layer))
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

fn serve(image: &Image) -> Result<Vec<File>, Error> {
    let files = Holders::of(&image.store)?.hold(&Served(image))?;
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
    /// Files, or why there are none.
    type Held = Result<Vec<File>, String>;

    /// This user and group, to whom alone FUSE shows the files, and the image.
    fn id(&self) -> io::Result<String> {
        let user = geteuid().as_raw().to_le_bytes();
        let group = getegid().as_raw().to_le_bytes();
        let image = self.0.manifest_digest.to_string();
        Ok(name(&[b"layers", &user, &group, image.as_bytes()]))
    }

    fn image(&self) -> &Image {
        self.0
    }

    fn start(&self, directory: &Path, listener: UnixListener, lock: &Lock) -> Result<(), Error> {
        let job = holder::Job {
            store: self.0.store.root().to_owned(),
            directory: directory.to_owned(),
            manifest: self.0.manifest_digest.to_string(),
            name: shown(self.0),
            is_lazy: self.0.is_lazy(),
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
        connection.set_read_timeout(Some(PATIENCE))?;
        let (done, files) = receive::<Done>(&connection)?;
        Ok(done.map(|()| files.into_iter().map(File::from).collect()))
    }
}
