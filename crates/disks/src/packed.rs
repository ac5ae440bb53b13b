//! Snapshots and volumes that are packed into the store's chunks, while nothing uses them. Whatever uses one unpacks it
//! before.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use micabox_error::Error;
use micabox_image::progress::{Event, Phase, Progress};
use micabox_image::store::{PackedFile, Packing, Patience};
use micabox_state::Sandboxes;
use serde::Serialize;

use crate::{Snapshots, Volumes};

/// Which snapshots and volumes are packed.
#[derive(Clone, Debug)]
pub enum KeptChoice {
    /// These.
    Named(Vec<Kept>),
    /// All that nothing used for so long.
    UnusedFor {
        /// How long.
        time: Duration,
        /// Whether volumes are packed as well as snapshots. They are data that may be nowhere else: that is up to who has
        /// them.
        volumes: bool,
    },
}

/// A snapshot or a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kept {
    /// The snapshot of this name.
    Snapshot(String),
    /// The volume of this name.
    Volume(String),
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Snapshot(name) => write!(f, "snapshot {name}"),
            Self::Volume(name) => write!(f, "volume {name}"),
        }
    }
}

/// What was packed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeptReport {
    /// Those that are packed now.
    pub packed: Vec<Kept>,
    /// Those that stay whole for now: a machine, a mount or another process has them open.
    pub in_use: Vec<Kept>,
    /// Those that stay whole: packing them would save less than an eighth of their space, or than 64 KiB.
    pub incompressible: Vec<Kept>,
    /// Snapshots that stay whole: their memory has other bytes than when it was saved.
    pub damaged: Vec<Kept>,
    /// Bytes on disk that the packed files took.
    pub before: u64,
    /// Bytes on disk that new packs and lists take.
    pub added: u64,
}

/// What became of a file.
pub(crate) enum Outcome {
    /// It is packed now: bytes on disk before, and of what is new.
    Packed(u64, u64),
    InUse,
    Incompressible,
    Damaged,
    /// It is packed already, or it was removed or replaced meanwhile.
    Nothing,
}

impl Outcome {
    /// Puts a file's list in its place.
    pub(crate) fn of(packed: PackedFile, path: &Path) -> Result<Self, Error> {
        let (before, added) = (packed.before(), packed.added());
        packed.replace(path)?;
        Ok(Self::Packed(before, added))
    }
}

/// Packs snapshots and volumes that nothing uses.
///
/// # Errors
/// [`Error::NoSuchSnapshot`], [`Error::NoSuchVolume`] for what is named; [`Error::Store`], [`Error::State`]. What was
/// packed before stays so.
pub fn pack(
    sandboxes: &Sandboxes,
    choice: &KeptChoice,
    patience: Patience,
    progress: &dyn Progress,
) -> Result<KeptReport, Error> {
    let chosen = chosen(sandboxes, choice)?;
    let mut report = KeptReport::default();
    if chosen.is_empty() {
        return Ok(report);
    }
    let Some(mut packing) = sandboxes.store().packing(patience)? else {
        return Ok(report);
    };
    progress.event(Event::Phase(Phase::Layers));
    for kept in chosen {
        report.add(sandboxes, kept, &mut packing, progress)?;
    }
    progress.event(Event::Phase(Phase::Done));
    Ok(report)
}

impl KeptReport {
    /// Packs one, and notes what became of it.
    fn add(
        &mut self,
        sandboxes: &Sandboxes,
        kept: Kept,
        packing: &mut Packing<'_>,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let watch = &mut watch(&kept, progress);
        let outcomes = match &kept {
            Kept::Snapshot(name) => Snapshots(sandboxes).pack(name, packing, watch)?,
            Kept::Volume(name) => vec![Volumes(sandboxes).pack(name, packing, watch)?],
        };
        let (mut is_packed, mut is_damaged, mut is_used, mut is_dense) = Default::default();
        for outcome in outcomes {
            match outcome {
                Outcome::Packed(before, added) => {
                    is_packed = true;
                    self.before += before;
                    self.added += added;
                }
                Outcome::Damaged => is_damaged = true,
                Outcome::InUse => is_used = true,
                Outcome::Incompressible => is_dense = true,
                Outcome::Nothing => {}
            }
        }
        match (is_damaged, is_packed, is_used, is_dense) {
            (true, ..) => self.damaged.push(kept),
            (_, true, ..) => self.packed.push(kept),
            (_, _, true, _) => self.in_use.push(kept),
            (.., true) => self.incompressible.push(kept),
            _ => {}
        }
        Ok(())
    }
}

/// Returns what is to be packed.
fn chosen(sandboxes: &Sandboxes, choice: &KeptChoice) -> Result<Vec<Kept>, Error> {
    let (snapshots, volumes) = (Snapshots(sandboxes), Volumes(sandboxes));
    match choice {
        KeptChoice::Named(named) => {
            for kept in named {
                match kept {
                    Kept::Snapshot(name) => drop(snapshots.get(name)?),
                    Kept::Volume(name) => drop(volumes.get(name)?),
                }
            }
            Ok(named.clone())
        }
        KeptChoice::UnusedFor {
            time,
            volumes: with_volumes,
        } => {
            let idle = snapshots.list()?.into_iter();
            let idle = idle.filter(|snapshot| snapshot.is_unused_for(*time));
            let idle = idle.map(|snapshot| Kept::Snapshot(snapshot.name));
            let disks = if *with_volumes {
                volumes.list()?
            } else {
                Vec::new()
            };
            let disks = disks
                .into_iter()
                .filter(|volume| volume.is_unused_for(*time));
            Ok(idle
                .chain(disks.map(|volume| Kept::Volume(volume.name)))
                .collect())
        }
    }
}

/// Makes a snapshot or a volume whole, if it is packed.
///
/// # Errors
/// [`Error::NoSuchSnapshot`], [`Error::NoSuchVolume`]; [`Error::Store`], [`Error::State`].
pub fn unpack(sandboxes: &Sandboxes, kept: &Kept, progress: &dyn Progress) -> Result<(), Error> {
    let watch = &mut watch(kept, progress);
    progress.event(Event::Phase(Phase::Layers));
    match kept {
        Kept::Snapshot(name) => Snapshots(sandboxes).unpack(name, watch)?,
        Kept::Volume(name) => Volumes(sandboxes).unpack(name, watch)?,
    }
    progress.event(Event::Phase(Phase::Done));
    Ok(())
}

/// Reports how much of a file is packed or unpacked.
fn watch<'a>(kept: &Kept, progress: &'a dyn Progress) -> impl FnMut(u64, u64) + use<'a> {
    let name = kept.to_string();
    move |bytes, of| {
        let name = &name;
        progress.event(Event::File { name, bytes, of });
    }
}

/// Returns whether these files were last written so long ago, as far as they are there.
pub(crate) fn is_unused_for<'a>(files: impl IntoIterator<Item = &'a Path>, time: Duration) -> bool {
    let mut written = files.into_iter().filter_map(|file| {
        let modified = fs::metadata(file).and_then(|metadata| metadata.modified());
        modified.ok()
    });
    let now = SystemTime::now();
    written.all(|written| now.duration_since(written).unwrap_or_default() >= time)
}

/// Notes that what has this record is used: the record's time of modification. Once an hour is enough.
pub(crate) fn note_use(record: &Path) {
    const OFTEN: Duration = Duration::from_secs(3600);
    if !is_unused_for([record], OFTEN) {
        return;
    }
    // What can't be written is not packed either.
    let file = File::options().write(true).open(record);
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}
