//! Snapshots of whole machines: memory, processors, devices and disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use micabox_error::{Error, Source, random};
use micabox_ground::hex;
use micabox_image::Store;
use micabox_spec::{BackendChoice, Spec};
use micabox_state::{Found, Lock, Record, SavedMachine, Stamp, Written, upper_disk};
use micabox_vmm::{Difference, Machine};
use sha2::{Digest, Sha256};

use super::names::{MACHINE, MANIFEST, MEMORY, PART};
use super::part;
use super::{DISK, NewSnapshot, Snapshot, Snapshots, claim, of};
use crate::freeze::{Problem, SaveTo, freeze};
use crate::upper::{copy, data_runs};

/// Name of the description for a restore.
const DESCRIPTION: &str = "machine.json";

/// All files that a killed process may have left in a snapshot's directory.
pub(super) const FILES: [&str; 10] = [
    DISK,
    MACHINE,
    MEMORY,
    PART,
    MANIFEST,
    DESCRIPTION,
    "disk.map",
    "memory.map",
    "disk.ext4.chunks",
    "memory.chunks",
];

/// Name of a template's list of the pages that its copies write to first.
const TOUCHED: &str = "touched";

/// How long an owner may take to save a machine: far longer than writing its memory takes.
const PATIENCE: Duration = Duration::from_secs(600);

const PAGE: usize = 4096;

/// Opens the files of a machine in a directory.
pub fn open(directory: &Path) -> Result<micabox_vmm::Snapshot, Error> {
    let (machine, memory) = (directory.join(MACHINE), directory.join(MEMORY));
    let mut snapshot = micabox_vmm::Snapshot::open(&machine, &memory)?;
    snapshot.touched = File::open(directory.join(TOUCHED)).ok().map(Arc::new);
    Ok(snapshot)
}

/// Makes the list of the pages that copies of a saved machine write to first, from one that has
/// done so. If that fails, a later copy tries.
pub fn learn(directory: &Path, machine: &dyn Machine) {
    let learn = || -> Result<(), Error> {
        let path = directory.join(TOUCHED);
        let file =
            tempfile::NamedTempFile::new_in(directory).map_err(Error::state("making", &path))?;
        machine.touched(file.as_file())?;
        let kept = file.persist(&path);
        kept.map_err(|error| Error::state("making", &path)(error.error))?;
        Ok(())
    };
    let _ = learn();
}

/// Makes empty files for a machine.
fn create(directory: &Path) -> Result<micabox_vmm::Snapshot, Error> {
    let (machine, memory) = (directory.join(MACHINE), directory.join(MEMORY));
    Ok(micabox_vmm::Snapshot::create(&machine, &memory)?)
}

/// Returns the path of the disk of the same moment.
pub fn disk(directory: &Path) -> PathBuf {
    directory.join(DISK)
}

/// Writes a machine's description beside it.
pub(super) fn describe(directory: &Path, machine: &SavedMachine) -> Result<(), Error> {
    let path = directory.join(DESCRIPTION);
    serde_json::to_vec_pretty(machine)
        .map_err(io::Error::from)
        .and_then(|text| fs::write(&path, text))
        .map_err(Error::state("writing", &path))
}

impl Snapshots<'_> {
    /// Saves a running sandbox at one moment: its memory, its processes, and its disk if it has one. The sandbox is
    /// frozen meanwhile. The snapshot is synced to the host's disk and gets a digest, so that any damage is noticed.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::BadSnapshotName`], [`Error::NotRunning`]; [`Error::NotSaved`];
    /// [`Error::Machine`] if its machine does not run on KVM.
    pub fn save(&self, id: &str, new: NewSnapshot) -> Result<Snapshot, Error> {
        let found = self.running(id)?;
        let fill = |snapshot: &mut Snapshot| {
            let mut machine = save(&found.record, &found.path, &snapshot.directory, false)?;
            let path = snapshot.directory.join(MEMORY);
            let written = sync(&snapshot.directory.join(MACHINE)).and_then(|()| written(&path));
            machine.set_written(written.map_err(Error::state("reading", &path))?);
            snapshot.memory = Some(machine);
            Ok::<_, Error>(())
        };
        let snapshot = of(&found.record, new.name, new.labels)?;
        Ok(self.add(snapshot, new.replaces, claim, fill)?.0)
    }

    /// Saves a running sandbox as [`Snapshots::save`], to be copied right away. The snapshot is removed when the
    /// result is dropped, or soon after this process ends.
    ///
    /// # Errors
    /// [`Error::NotRunning`], [`Error::NotSaved`]; [`Error::Machine`] if its machine does not run on KVM.
    pub fn ephemeral(&self, id: &str) -> Result<Ephemeral, Error> {
        let found = self.running(id)?;
        let number = random()?;
        let name = format!("fork-{:016x}", u64::from_le_bytes(number));
        let mut snapshot = of(&found.record, name, BTreeMap::new())?;
        snapshot.ephemeral = true;
        let fill = |snapshot: &mut Snapshot| {
            let directory = &snapshot.directory;
            snapshot.memory = Some(save(&found.record, &found.path, directory, true)?);
            Ok::<_, Error>(())
        };
        let (snapshot, lock) = self.add(snapshot, None, claim, fill)?;
        Ok(Ephemeral {
            snapshot,
            _lock: lock,
        })
    }

    fn running(&self, id: &str) -> Result<Found, Error> {
        let found = self.0.directory().find(id)?;
        if found.record.status.is_live() {
            Ok(found)
        } else {
            Err(Error::NotRunning(found.record.name))
        }
    }
}

/// Opens the machine of the snapshot `name` in a directory, and checks that its memory is unchanged. A memory of which only
/// a part is here is served: each chunk is compared when it is read, and the digest of the whole once that is here.
pub(super) fn open_checked(
    store: &Store,
    name: &str,
    directory: &Path,
    machine: &SavedMachine,
) -> Result<micabox_vmm::Snapshot, Error> {
    check_agent(name, machine)?;
    if let Some(memory) = part::open(store, name, directory)? {
        let path = directory.join(MACHINE);
        let state = File::open(&path).map_err(Error::state("reading", &path))?;
        return Ok(micabox_vmm::Snapshot::new(state, memory));
    }
    let mut files = open(directory)?;
    files.base = machine.base().cloned();
    let Some(expected) = machine.written() else {
        return Ok(files);
    };
    let is_untouched = Stamp::of_file(&files.memory).is_ok_and(|stamp| stamp == expected.stamp);
    let is_same = || digest(&files.memory).is_ok_and(|digest| digest == expected.sha256);
    if is_untouched || is_same() {
        Ok(files)
    } else {
        Err(Error::DamagedSnapshot {
            name: name.to_owned(),
            path: directory.join(MEMORY),
        })
    }
}

/// Checks that this version of mica can talk to the agent in a saved machine's memory, as far as that is known.
///
/// # Errors
/// [`Error::SnapshotElsewhere`].
pub fn check_agent(name: &str, machine: &SavedMachine) -> Result<(), Error> {
    let ours = micabox_wire::VERSION;
    match machine.agent() {
        Some(theirs) if theirs != ours => Err(Error::SnapshotElsewhere {
            name: name.to_owned(),
            source: Box::new(Difference::Agent { theirs, ours }),
        }),
        _ => Ok(()),
    }
}

/// An ephemeral snapshot, removed when it is dropped.
#[derive(Debug)]
pub struct Ephemeral {
    snapshot: Snapshot,
    /// A process that finds the snapshot unlocked removes it.
    _lock: Lock,
}

impl Ephemeral {
    /// Returns the snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Drop for Ephemeral {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.snapshot.directory);
    }
}

/// The owner of a sandbox can't be asked.
#[derive(Debug, thiserror::Error)]
#[error("its owner does not answer: {0}")]
struct NoAnswer(#[source] io::Error);

/// Saves the machine of a sandbox, whose state is in the directory `own`, into another directory
/// through its owner, and copies its disk while the machine is frozen. With `ephemeral`, the memory
/// may be a delta, and nothing is synced to the host's disk.
pub fn save(
    record: &Record,
    own: &Path,
    directory: &Path,
    ephemeral: bool,
) -> Result<SavedMachine, Error> {
    if let Some(backend) = without_snapshots(record.backend) {
        return Err(micabox_vmm::Error::NoSnapshots { backend }.into());
    }
    let problem = |source: Source| Error::NotSaved {
        name: record.name.clone(),
        source,
    };
    let files = create(directory)?;
    let to = SaveTo {
        files: &files,
        delta: ephemeral,
    };
    let frozen = freeze(own, Some(to), PATIENCE);
    let mut frozen = frozen.map_err(|error| match error {
        Problem::Refused(why) => problem(why.into()),
        Problem::Ending(error) => problem(NoAnswer(error).into()),
    })?;
    let noted: Spec = serde_json::from_value(std::mem::take(&mut frozen.note))
        .map_err(|error| problem(error.into()))?;
    let spec = Spec {
        // The limits of its processes and disks may have changed since the start.
        machine: record.spec.machine.started(&noted.machine),
        upper: record.spec.upper.clone(),
        setup: record.spec.setup.clone(),
        ..noted
    };
    let machine = SavedMachine::new(spec, frozen.main, frozen.base.take().map(Arc::new));
    let copying = |source| Error::System {
        what: "copying its disk",
        source,
    };
    let mut copy = None;
    if record.spec.upper.is_kept() {
        let copied = copy_disk(own, directory, &mut || frozen.hold());
        copy = Some(copied.map_err(copying)?);
    }
    if !frozen.thaw() {
        return Err(problem("it was resumed before its disk was copied".into()));
    }
    if let Some(copy) = copy.filter(|_| !ephemeral) {
        copy.sync_all().map_err(copying)?;
    }
    describe(directory, &machine)?;
    Ok(machine)
}

/// Returns the name of a backend that saves no machines.
fn without_snapshots(backend: BackendChoice) -> Option<&'static str> {
    match backend {
        BackendChoice::Qemu => Some("qemu"),
        BackendChoice::Host => Some("host"),
        BackendChoice::Kvm | BackendChoice::Auto => None,
    }
}

/// Reads the description of the machine in a directory.
pub fn description(directory: &Path) -> Result<SavedMachine, Error> {
    let path = directory.join(DESCRIPTION);
    let text = fs::read(&path).map_err(Error::state("reading", &path))?;
    serde_json::from_slice(&text).map_err(|error| Error::state("reading", &path)(error.into()))
}

pub(super) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Syncs a file and returns its identity.
pub(super) fn written(path: &Path) -> io::Result<Written> {
    sync(path)?;
    // The stamp comes first: a change while the bytes are read changes it.
    Ok(Written {
        stamp: Stamp::of(path)?,
        sha256: digest(&File::open(path)?)?,
    })
}

/// Returns the SHA-256 over the length, and offset and bytes of every page that isn't zero: the
/// same wherever the host's filesystem has holes.
pub(super) fn digest(file: &File) -> io::Result<String> {
    let mut hash = Sha256::new();
    hash.update(file.metadata()?.len().to_le_bytes());
    let mut buffer = vec![0; 256 * PAGE];
    for (start, length) in data_runs(file)? {
        let (mut at, end) = (start / PAGE as u64 * PAGE as u64, start + length);
        while at < end {
            let count = buffer.len().min((end - at) as usize);
            let part = buffer.get_mut(..count).unwrap_or_default();
            file.read_exact_at(part, at)?;
            for page in part.chunks(PAGE) {
                if page.iter().any(|byte| *byte != 0) {
                    hash.update(at.to_le_bytes());
                    hash.update(page);
                }
                at += page.len() as u64;
            }
        }
    }
    Ok(hex(hash.finalize()))
}

/// Copies the disk of the sandbox in `from`, whose machine is frozen, into a snapshot's directory.
fn copy_disk(from: &Path, directory: &Path, progress: &mut dyn FnMut()) -> io::Result<File> {
    let source = File::open(upper_disk(from))?;
    let target = copy::create(&disk(directory))?;
    copy::fill(&source, &target, progress)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_sees_bytes_and_not_holes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memory");
        let make = |change: &dyn Fn(&File)| {
            let file = File::create(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            file.write_all_at(b"abc", 300_000).unwrap();
            change(&file);
            digest(&File::open(&path).unwrap()).unwrap()
        };
        let plain = make(&|_| {});
        assert_eq!(
            make(&|file| file.write_all_at(&[0; 9000], 500_000).unwrap()),
            plain
        );
        assert_ne!(
            make(&|file| file.write_all_at(b"b", 300_000).unwrap()),
            plain
        );
        assert_ne!(
            make(&|file| file.write_all_at(b"x", 700_000).unwrap()),
            plain
        );
        assert_ne!(make(&|file| file.set_len((1 << 20) - 1).unwrap()), plain);
    }
}
