//! Gives volumes to a machine.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use micabox_error::{Error, Source, VolumeUser, VolumeWish};
use micabox_ext4::format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use micabox_overlay::view::PathKind;
use micabox_parsers::{Look, Medium, Pack, Settle, is_dirty};
use micabox_spec::DEFAULT_DISK_SIZE;
use micabox_vmm::MachineFile;

use super::Volumes;
use super::{DATA, MIN_VOLUME_SIZE, Volume, disk};
use crate::Base;
use crate::upper::{self, Opened};
use crate::upper::{About, Unread};

/// How a sandbox uses a volume.
#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    /// Where it is mounted: what the image has there goes into a new volume.
    pub target: &'a [u8],
    /// Whether the sandbox only reads it.
    pub read_only: bool,
    /// Whether a new volume stays empty.
    pub no_copy: bool,
}

impl Volumes<'_> {
    /// Opens and locks a volume's disk for a machine. A volume that does not exist is made, and one
    /// that no sandbox has used is filled with what `base` has at the target. The lock is released
    /// when the last duplicate of the file is closed.
    pub fn attach(&self, name: &str, base: &Base, usage: Use<'_>) -> Result<MachineFile, Error> {
        let mut volume = match self.get(name) {
            Err(Error::NoSuchVolume(_)) => {
                match self.create(name, DEFAULT_DISK_SIZE, <_>::default()) {
                    // Another sandbox has made it meanwhile.
                    Err(Error::VolumeExists(_)) => self.get(name),
                    made => made,
                }
            }
            found => found,
        }?;
        let wish = if usage.read_only {
            VolumeWish::Read
        } else {
            VolumeWish::Write
        };
        let busy = || self.busy(name, wish);
        volume.note_use();
        if let Some(disk) = self.lock_disk(&volume, false)? {
            // Read again under the lock.
            volume = self.get(name)?;
            if volume.is_new {
                if !usage.no_copy {
                    populate(&volume, &disk, base, usage.target)?;
                }
                volume.is_new = false;
                let published = volume.publish();
                published.map_err(Error::state("writing", &volume.directory))?;
            }
            if !usage.read_only {
                return Ok(disk);
            }
            settle(&volume, &disk)?;
            let reader = disk::reader(&volume, &disk)?;
            return reader.ok_or_else(busy);
        } else if !usage.read_only {
            return Err(busy());
        }
        self.lock_disk(&volume, true)?.ok_or_else(busy)
    }

    /// Makes the error about a volume whose lock another process holds.
    pub(super) fn busy(&self, name: &str, wish: VolumeWish) -> Error {
        let user = |record: micabox_state::Record| {
            let volumes = record.spec.setup.volumes();
            let used = volumes.iter().find(|used| used.source.name == name)?;
            Some(if used.read_only {
                VolumeUser::Reader(record.name.clone())
            } else {
                VolumeUser::Writer(record.name.clone())
            })
        };
        let all = self.0.list().unwrap_or_default().into_iter();
        let user = all.filter(|record| record.status.is_live()).find_map(user);
        Error::VolumeInUse {
            name: name.to_owned(),
            user: user.unwrap_or(VolumeUser::Process),
            wish,
        }
    }
}

/// Replays the journal of a volume that was not unmounted: a machine that only reads can't.
fn settle(volume: &Volume, disk: &MachineFile) -> Result<(), Error> {
    let mut bytes = [0; Superblock::SIZE];
    let path = volume.disk();
    let unusable = |source: Source| Error::Disk {
        what: "replaying the journal of",
        path: path.clone(),
        source,
    };
    let file = disk.file();
    file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)
        .map_err(|error| unusable(error.into()))?;
    if !is_dirty(&Superblock::decode(&bytes)) {
        return Ok(());
    }
    let file = file.try_clone().map_err(|error| unusable(error.into()))?;
    match micabox_parsers::call(&Settle, file, Vec::new(), disk.length()) {
        Ok(_) => Ok(()),
        Err(error) => Err(unusable(error.into())),
    }
}

/// Copies what the image has at `target` into an empty volume, if that is a directory.
fn populate(volume: &Volume, disk: &MachineFile, base: &Base, target: &[u8]) -> Result<(), Error> {
    let path = volume.disk();
    let about = About::new("filling", &path, base).asked(target);
    // What is read is an image with changes: there are none.
    let changes = volume.directory.join("changes");
    // Of a process that was killed: this one has the volume's lock.
    let _ = std::fs::remove_file(&changes);
    let result = upper::make_disk(&changes, MIN_VOLUME_SIZE, [0; 16], [0; 16])
        .and_then(|()| File::open(&changes).map_err(|error| about.disk(error)));
    let _ = std::fs::remove_file(&changes);
    let changes = result?;
    let (lower, below) = base.lower_files()?;
    let look = Look {
        medium: Medium::Disk,
        lower,
        path: target.to_vec(),
    };
    let first = changes.try_clone().map_err(|error| about.disk(error))?;
    match micabox_parsers::call(&look, first, below, 0) {
        Ok((PathKind::Directory, _)) => {}
        Ok(_) => return Ok(()),
        Err(error) => return Err(about.error(error)),
    }
    let (lower, below) = base.lower_files()?;
    let changes = Opened::disk(changes).map_err(|error| about.disk(error))?;
    let pack = Pack {
        medium: changes.medium,
        lower,
        path: target.to_vec(),
        follow: true,
        name: DATA.as_bytes().to_vec(),
    };
    let mut archive = Unread::start(pack, about.clone(), changes, below)?;
    let system = |source| Error::System {
        what: "filling a volume",
        source,
    };
    let (reader, mut writer) = io::pipe().map_err(system)?;
    let file = disk.file().try_clone().map_err(system)?;
    let imported = std::thread::scope(|scope| {
        let import =
            scope.spawn(|| micabox_parsers::ext4::import(file, OwnedFd::from(reader), None));
        let copied = io::copy(&mut archive, &mut writer);
        drop(writer);
        (copied, import.join())
    });
    match imported {
        // Its reason is the better one: the archive broke off because of it.
        (_, Ok(Err(error))) => Err(about.error(error)),
        (Err(error), _) => Err(system(error)),
        (Ok(_), _) => archive.finish().map(drop),
    }
}
