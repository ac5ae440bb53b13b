//! Opens an image's layers, whole or not.
//!
//! A layer that is packed has no file that a machine could map. A process of its own ([`holder`]) serves the layers of
//! such an image as files by FUSE: a machine gets their descriptors and uses them as any others, so the kernel caches
//! what was read once for all machines. Meanwhile the process unpacks the image, for those that come later. It ends when
//! none of its files is open any more, in any process.

mod holder;

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use micabox_image::progress::Silent;
use micabox_image::store::Image;
use rustix::process::geteuid;
use tracing::debug;

use crate::Error;
use crate::holders::{Holders, PATIENCE, Wanted, name, not_served, shown};
use crate::owner::receive;
use crate::state::Lock;

pub(crate) use holder::KIND;

/// Opens the layers of an image for reading. If some are packed, they are served; where the system has no FUSE for this
/// user, they are unpacked first.
///
/// # Errors
/// [`Error::ImageFile`]; the store's.
pub(crate) fn open(image: &Image) -> Result<Vec<File>, Error> {
    let store = &image.store;
    store.note_use(image);
    if image.layers.iter().any(|layer| store.is_packed(layer)) {
        match serve(image) {
            Ok(files) => return Ok(files),
            Err(error) => debug!(%error, "packed layers can't be served: unpacking them"),
        }
        store.unpack(image, &Silent)?;
    }
    let layers = image.layers.iter();
    let opened = layers.map(|layer| {
        File::open(&layer.path).map_err(|error| Error::ImageFile {
            path: layer.path.clone(),
            source: error.into(),
        })
    });
    opened.collect()
}

fn serve(image: &Image) -> Result<Vec<File>, Error> {
    let files = Holders::of(&image.store)?.hold(&Served(image))?;
    if files.len() == image.layers.len() {
        return Ok(files);
    }
    Err(not_served(image, "its holder has other layers"))
}

/// What a holder is made for.
struct Served<'a>(&'a Image);

impl Wanted for Served<'_> {
    type Held = Vec<File>;

    /// This user, the image.
    fn id(&self) -> io::Result<String> {
        let user = geteuid().as_raw().to_le_bytes();
        let image = self.0.manifest_digest.to_string();
        Ok(name(&[b"layers", &user, image.as_bytes()]))
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
        };
        match holder::start(&job, lock.file(), listener) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(problem)) => Err(not_served(self.0, problem)),
            Err(source) => Err(Error::System {
                what: "starting the server of packed layers",
                source,
            }),
        }
    }

    fn greeted(&self, connection: UnixStream) -> io::Result<Vec<File>> {
        connection.set_read_timeout(Some(PATIENCE))?;
        let ((), files) = receive::<()>(&connection)?;
        Ok(files.into_iter().map(File::from).collect())
    }
}
