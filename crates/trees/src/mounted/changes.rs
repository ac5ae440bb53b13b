//! What is changed in a mounted tree: a list, or a layer of an image. The tree's server writes both; a
//! client connects to its socket, selects one with a byte, and reads [`Pieces`]. Where the kernel serves the
//! tree, the client gets the folder with the changes, and reads it as that of a sandbox.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use micabox_disks::upper::{Change, FrozenDisk};
use micabox_disks::{Base, commit_layer};
use micabox_error::Error;
use micabox_image::convert::Place;
use micabox_image::store::Image;
use micabox_image::{AppendLayerError, ImageEdit, Limits, Reference, append_layer};
use micabox_mount::below::Merged;
use micabox_mount::{Layer, Tree};
use micabox_overlay::layer::{LayerError, write_layer};
use micabox_overlay::lower::Lower;
use micabox_overlay::view::View;
use micabox_owner::socket;
use micabox_parsers::{ChangesError, Fault, Notes, read_changes, write_changes};
use micabox_state::BaseName;
use rustix::fs::syncfs;

use super::{CONTROL, Found, Mounts, Pieces, ServedBy, TreeKind, layer};

/// What a client asks for.
const DIFF: u8 = b'd';
const LAYER: u8 = b'l';

/// A tree with changes, in its server.
pub struct Changed {
    pub tree: &'static Tree<'static>,
    /// What the tree is over, if that has changes of a sandbox.
    pub merged: Option<Arc<Merged>>,
    /// What all changes are over.
    pub below: Arc<Lower>,
}

impl Changed {
    /// Answers clients, one after the other. The tree can't be changed meanwhile.
    pub fn answer(&self, listener: &UnixListener) {
        while let Ok((client, _)) = listener.accept() {
            let mut client = File::from(OwnedFd::from(client));
            let mut asked = [0];
            if client.read_exact(&mut asked).is_err() {
                continue;
            }
            let mut output = Pieces::new(client);
            let result = self.write(asked, &mut output);
            // The client may have gone.
            let _ = output.finish(&result);
        }
    }

    fn write(&self, [asked]: [u8; 1], output: &mut impl Write) -> Result<(), Fault> {
        let _frozen = self.tree.freeze();
        let files = self.tree.files();
        let torn = files.torn_files();
        if asked == LAYER && torn > 0 {
            let what = "of its files lack what was written to them: there was no room (--size); write them anew";
            return Err(Fault::asked(format!("{torn} {what}")));
        }
        let layer = match &self.merged {
            Some(merged) => Layer::with_upper(files, Arc::clone(merged)),
            None => Layer::new(files),
        };
        let mut view = View::new(layer.map_err(Fault::disk)?, Arc::clone(&self.below));
        match asked {
            DIFF => write_changes(&mut view, output).map_err(|error| match error {
                ChangesError::View(error) => error.into(),
                ChangesError::Output(error) => Fault::output(error),
            }),
            LAYER => match write_layer(&mut view, output) {
                Ok(_) => Ok(()),
                Err(LayerError::View(error)) => Err(error.into()),
                Err(error) => Err(Fault::disk(error)),
            },
            _ => Err(Fault::asked("it is not known what that is")),
        }
    }
}

impl Mounts {
    /// Calls `each` with every change in the tree on a directory: each directory before its contents.
    /// Changes passed before an error are correct. What is changed meanwhile in a tree that the kernel serves
    /// may be among them or not.
    ///
    /// # Errors
    /// [`Error::NotMounted`], [`Error::MountedReadOnly`], [`Error::MountedChanges`]; [`Error::System`] if
    /// `each` fails.
    pub fn diff(
        &self,
        place: &Path,
        mut each: impl FnMut(Change<'_>) -> io::Result<()>,
    ) -> Result<Notes, Error> {
        let found = self.changed(place)?;
        if found.record.by == ServedBy::Kernel {
            let base = self.base(place)?;
            return kept_by_kernel(place, &found)?.changes(&base, each);
        }
        let mut refused = None;
        let mut input = ask(place, &found, DIFF)?;
        let read = read_changes(&mut input, |change| {
            each(change).map_err(|error| {
                let kind = error.kind();
                refused = Some(error);
                kind.into()
            })
        });
        match (read, refused) {
            (_, Some(source)) => Err(Error::System {
                what: "passing on the changes",
                source,
            }),
            (Err(error), None) => Err(changes(place, &error)),
            (Ok(()), None) => Ok(Notes::default()),
        }
    }

    /// Makes an image of the changes in the tree on a directory, on top of its image's layers, and gives
    /// it the names in `references`.
    ///
    /// # Errors
    /// As [`Mounts::diff`]; [`Error::NoImage`] if it is not a tree of an image; [`Error::Commit`].
    pub fn commit(
        &self,
        place: &Path,
        edit: &ImageEdit,
        references: &[Reference],
        limits: &Limits,
    ) -> Result<(Image, Notes), Error> {
        let base = self.base(place)?;
        let Base::Image(image) = &base else {
            return Err(Error::NoImage(place.to_string_lossy().into_owned()));
        };
        let found = self.changed(place)?;
        let store = self.sandboxes.store();
        if found.record.by == ServedBy::Kernel {
            let layer = kept_by_kernel(place, &found)?.layer(&base)?;
            return commit_layer(store, image, layer, edit, references, limits);
        }
        let mut layer = ask(place, &found, LAYER)?;
        let made = append_layer(
            store,
            image,
            &mut layer,
            edit,
            references,
            limits,
            Place::Jail,
        );
        let image = made.map_err(|error| match error {
            AppendLayerError::Read(error) => changes(place, &error),
            error => Box::new(error).into(),
        })?;
        Ok((image, Notes::default()))
    }

    /// Returns the image of the tree on a directory, which [`Mounts::commit`] adds a layer to.
    ///
    /// # Errors
    /// [`Error::NotMounted`]; [`Error::NoImage`] if it is not a tree of an image.
    pub fn base(&self, place: &Path) -> Result<Base, Error> {
        let record = self.found(place)?.record;
        match &record.base {
            Some(name @ BaseName::Image(_)) => {
                Base::find(self.sandboxes.store(), name, &record.source)
            }
            _ => Err(Error::NoImage(place.to_string_lossy().into_owned())),
        }
    }

    fn found(&self, place: &Path) -> Result<Found, Error> {
        let found = self.find(place)?;
        found.ok_or_else(|| Error::NotMounted(place.to_owned()))
    }

    /// Returns the tree on a directory, which can be changed.
    fn changed(&self, place: &Path) -> Result<Found, Error> {
        let found = self.found(place)?;
        if found.record.kind == TreeKind::Memory {
            Err(Error::MountedChanges {
                place: place.to_owned(),
                problem: "it is a filesystem in memory, and over nothing that it differs from"
                    .to_owned(),
            })
        } else if found.record.is_writable {
            Ok(found)
        } else {
            Err(Error::MountedReadOnly(place.to_owned()))
        }
    }
}

/// Asks the server of a tree for its changes, once the kernel has given it all that it has cached.
fn ask(place: &Path, found: &Found, what: u8) -> Result<Pieces<File>, Error> {
    let connect = || -> io::Result<File> {
        syncfs(File::open(&found.record.place)?)?;
        let stream = socket::connect(&found.directory, CONTROL.as_ref())?;
        let mut stream = File::from(OwnedFd::from(stream));
        stream.write_all(&[what])?;
        Ok(stream)
    };
    connect()
        .map(Pieces::new)
        .map_err(|error| changes(place, &error))
}

/// Returns the changes in a tree that the kernel serves.
fn kept_by_kernel(place: &Path, found: &Found) -> Result<FrozenDisk, Error> {
    let folder = layer::ask(&found.directory).map_err(|error| changes(place, &error))?;
    Ok(FrozenDisk::of_mounted(place, folder))
}

fn changes(place: &Path, error: &io::Error) -> Error {
    Error::MountedChanges {
        place: place.to_owned(),
        problem: error.to_string(),
    }
}
