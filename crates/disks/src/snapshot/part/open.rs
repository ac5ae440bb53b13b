//! Opens what is here of a memory, with the registry that has the rest.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use micabox_error::Error;
use micabox_image::Store;
use micabox_lazy::PartFile;
use micabox_state::Sandboxes;

use super::super::names::{MANIFEST, MEMORY, PART, map_of};
use super::super::{Snapshot, Snapshots};

/// The longest file that is read whole: a map of some 90 GB.
const MOST: u64 = 256 << 20;

/// A memory of which a part is here.
pub(super) struct Opened {
    pub(super) sandboxes: Sandboxes,
    pub(super) snapshot: Snapshot,
    pub(super) file: Arc<PartFile>,
}

impl Opened {
    /// Opens the memory of the snapshot `name`.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::SnapshotIncomplete`], [`Error::State`].
    pub(super) fn of(store: &Store, name: &str) -> Result<Self, Error> {
        let sandboxes = Sandboxes::open(store)?;
        let all = Snapshots(&sandboxes);
        let snapshot = all.get(name)?;
        let path = snapshot.directory.join(PART);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(Error::state("opening", &path))?;
        let read = |path: &Path| {
            let look = || match fs::metadata(path)?.len() {
                0..=MOST => fs::read(path),
                _ => Err(io::ErrorKind::FileTooLarge.into()),
            };
            look().map_err(Error::state("reading", path))
        };
        let manifest = read(&snapshot.directory.join(MANIFEST))?;
        let map = read(&map_of(&snapshot.directory.join(MEMORY)))?;
        let file = registry::open(store, all, &snapshot, &manifest, &map, file);
        let file = file.map_err(|problem| Error::SnapshotIncomplete {
            name: name.to_owned(),
            problem,
        })?;
        Ok(Self {
            snapshot,
            file: Arc::new(file),
            sandboxes,
        })
    }

    /// Returns whether this is still the snapshot's memory, and not whole yet: the snapshot may have been removed, another
    /// one may have its name, and another process may have made it whole.
    pub(super) fn is_wanted(&self) -> bool {
        is_same(&self.snapshot.directory.join(PART), self.file.file())
    }

    /// Returns whether this is still the snapshot's memory, whole or not.
    pub(super) fn is_there(&self) -> bool {
        is_same(&self.snapshot.directory.join(MEMORY), self.file.file()) || self.is_wanted()
    }
}

/// Returns whether a path is that of an open file.
pub(super) fn is_same(path: &Path, file: &File) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (named, open) = (fs::metadata(path).map(id), file.metadata().map(id));
    matches!((named, open), (Ok(named), Ok(open)) if named == open)
}

#[cfg(feature = "registry")]
mod registry {
    use std::fs::File;
    use std::sync::Arc;

    use micabox_image::{Digest, Reference, Store};
    use micabox_lazy::PartFile;
    use micabox_transfer::snapshot::{CutFile, Kept, Part, open_part};
    use micabox_transfer::{PullOptions, Settings};

    use super::{Snapshot, Snapshots};

    /// Opens a memory, with what other snapshots of the same repository have: a registry sees what it is not asked for.
    pub(super) fn open(
        store: &Store,
        all: Snapshots<'_>,
        snapshot: &Snapshot,
        manifest: &[u8],
        map: &[u8],
        file: File,
    ) -> Result<PartFile, String> {
        let mut places = snapshot.places.iter();
        let place = places.find(|place| place.pulled);
        let place = place.ok_or("its record does not say where it is from")?;
        let reference: Result<Reference, _> = place.reference.parse();
        let reference = reference.map_err(|error| error.to_string())?;
        let digest: Result<Digest, _> = place.manifest.parse();
        let digest = digest.map_err(|error| error.to_string())?;
        let mut others = all.list().map_err(|error| error.to_string())?;
        others.retain(|other| other.name != snapshot.name && other.is_beside(&reference));
        let others = others.iter().flat_map(Snapshot::cut_files);
        let others: Vec<_> = others.map(|(map, file)| CutFile { map, file }).collect();
        let settings = Settings::load().map_err(|error| error.to_string())?;
        let options = PullOptions::new(Arc::new(settings));
        let kept = Kept {
            reference: &reference,
            digest: &digest,
            manifest,
            part: Part::Memory,
            map,
            file,
        };
        // The caller's thread may be one of an asynchronous runtime.
        let open = || open_part(store, kept, &others, &options);
        let opened = std::thread::scope(|scope| scope.spawn(open).join());
        match opened {
            Ok(opened) => opened.map_err(|error| error.to_string()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

#[cfg(not(feature = "registry"))]
mod registry {
    use std::fs::File;

    use micabox_image::Store;
    use micabox_lazy::PartFile;

    use super::{Snapshot, Snapshots};

    pub(super) fn open(
        _: &Store,
        _: Snapshots<'_>,
        _: &Snapshot,
        _: &[u8],
        _: &[u8],
        _: File,
    ) -> Result<PartFile, String> {
        Err("this program was built without the feature `registry`".to_owned())
    }
}
