//! Snapshots on their way to a registry and from one: the document that says what a snapshot is and needs, and which files
//! it has. How they travel is not decided here.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use micabox_error::Error;
use micabox_ground::publish;
use micabox_image::{Digest, Reference};
use micabox_parsers::Notes;
use micabox_spec::{ImageName, Upper};
use micabox_state::{BaseName, SavedMachine, Stamp, Written};
use micabox_vmm::Needs;
use serde::{Deserialize, Serialize};

use super::landing::Landings;
use super::left::claim_for_pull;
use super::memory::{check_agent, describe, digest, open_checked, sync, written};
use super::names::{MACHINE, MEMORY, PART, map_of};
use super::part::complete;
use super::{DISK, SIZE_MAX, Snapshot, Snapshots, is_valid, settle, write_record};

/// The version of the document. Another one can't be read.
const FORMAT: u32 = 1;

/// A snapshot in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its name there, with a tag.
    pub reference: String,
    /// Digest of its manifest.
    pub manifest: String,
    /// Whether it is from there, and not only there as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pulled: bool,
    /// Who signed it there, as far as the policy asked when it was pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<String>,
}

impl Place {
    /// Returns whether it is in the repository of `reference`.
    pub fn is_beside(&self, reference: &Reference) -> bool {
        let other = self.reference.parse::<Reference>();
        other.is_ok_and(|other| {
            (other.registry(), other.repository()) == (reference.registry(), reference.repository())
        })
    }
}

/// What a registry has beside the bytes.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    format: u32,
    /// The version of mica, for people who look at it.
    made_by: String,
    /// What its machine needs, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    needs: Option<Needs>,
    snapshot: Snapshot,
    files: Files,
}

/// The version alone: what else a later document has is not known.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// The files of a snapshot.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Files {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disk: Option<Identity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<Identity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<Identity>,
}

/// What a file has.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    /// Bytes, holes included.
    size: u64,
    /// SHA-256 of the length as 8 bytes, little-endian, and of offset and bytes of each page of 4 KiB that is not zeros.
    sha256: String,
}

impl Identity {
    fn of(path: &Path) -> Result<Self, Error> {
        Self::opened(path).map(|(identity, _)| identity)
    }

    /// Returns the file as well: another one may take its path.
    fn opened(path: &Path) -> Result<(Self, File), Error> {
        let look = || -> io::Result<_> {
            let file = File::open(path)?;
            let identity = Self {
                size: file.metadata()?.len(),
                sha256: digest(&file)?,
            };
            Ok((identity, file))
        };
        look().map_err(Error::state("reading", path))
    }
}

/// A snapshot that is to go to a registry.
#[derive(Debug)]
pub struct Departing {
    document: Document,
    /// Its disk, if it has one, and the path for errors.
    pub disk: Option<(File, PathBuf)>,
    /// Its memory, likewise.
    pub memory: Option<(File, PathBuf)>,
    /// The state of its machine.
    pub machine: Option<Vec<u8>>,
}

impl Departing {
    /// Returns the image that it is of.
    pub fn image(&self) -> Option<&ImageName> {
        match &self.document.snapshot.base {
            BaseName::Image(image) => Some(image),
            _ => None,
        }
    }

    /// Returns when it was made, in seconds since 1970: another one of its name was not.
    pub fn created(&self) -> i64 {
        self.document.snapshot.created
    }

    /// Makes its document. `image` is the digest of its image's manifest in the registry.
    pub fn document(mut self, image: Option<&Digest>) -> Vec<u8> {
        if let (BaseName::Image(name), Some(digest)) = (&mut self.document.snapshot.base, image) {
            name.digest = digest.to_string();
        }
        // It has no maps whose keys are not text.
        serde_json::to_vec_pretty(&self.document).unwrap_or_default()
    }
}

/// A snapshot that a registry has, and that can be used here.
#[derive(Debug)]
pub struct Arriving {
    reference: Reference,
    document: Document,
}

impl Arriving {
    /// Returns the name that a snapshot of this reference gets: `wanted`, or else the reference's last part.
    ///
    /// # Errors
    /// [`Error::BadSnapshotName`].
    pub fn called(reference: &Reference, wanted: Option<&str>) -> Result<String, Error> {
        let name = wanted.map_or_else(|| Self::name_of(reference), str::to_owned);
        if is_valid(&name) {
            Ok(name)
        } else {
            Err(Error::BadSnapshotName(name))
        }
    }

    /// Reads the document of the snapshot `reference`, no field of which is trusted, and checks whether the snapshot can
    /// be used on this machine.
    ///
    /// # Errors
    /// [`Error::SnapshotRefused`], [`Error::SnapshotElsewhere`].
    pub fn read(reference: &Reference, document: &[u8]) -> Result<Self, Error> {
        let name = || reference.familiar();
        let refused = |problem: String| Error::SnapshotRefused {
            name: name(),
            problem,
        };
        let malformed =
            |error: serde_json::Error| refused(format!("its config is malformed: {error}"));
        let Version { format } = serde_json::from_slice(document).map_err(malformed)?;
        if format != FORMAT {
            return Err(refused(format!(
                "its format is {format}, and this version of mica reads {FORMAT}"
            )));
        }
        let mut document: Document = serde_json::from_slice(document).map_err(malformed)?;
        if let Some(needs) = &document.needs {
            needs.check().map_err(|source| Error::SnapshotElsewhere {
                name: name(),
                source: Box::new(source),
            })?;
        }
        if let Some(machine) = &document.snapshot.memory {
            check_agent(&name(), machine)?;
        }
        let problem = document.check();
        problem.map_err(|problem| refused(format!("its config: {problem}")))?;
        Ok(Self {
            reference: reference.clone(),
            document,
        })
    }

    /// Returns the name of its image's manifest, which is in the same repository.
    ///
    /// # Errors
    /// [`Error::BadRecord`] if it is not a digest.
    pub fn image(&self) -> Result<Option<Reference>, Error> {
        let BaseName::Image(image) = &self.document.snapshot.base else {
            return Ok(None);
        };
        let (registry, repository) = (self.reference.registry(), self.reference.repository());
        let name = format!("{registry}/{repository}@{}", image.digest);
        let name = name
            .parse::<Reference>()
            .ok()
            .filter(|name| name.digest().is_some());
        let name = name.ok_or_else(|| Error::BadRecord(image.digest.clone()))?;
        Ok(Some(name))
    }

    /// Returns the name of a snapshot that is pulled by this reference: the last part of the repository's, and the tag
    /// unless it is `latest`.
    fn name_of(reference: &Reference) -> String {
        let last = reference.repository().rsplit('/').next();
        let last = last.unwrap_or_default();
        match reference.tag() {
            None | Some("latest") => last.to_owned(),
            Some(tag) => format!("{last}-{tag}"),
        }
    }
}

impl Document {
    /// Checks what fields say of each other, and takes out what is not for this machine.
    fn check(&mut self) -> Result<(), String> {
        let snapshot = &mut self.snapshot;
        (snapshot.ephemeral, snapshot.places) = (false, Vec::new());
        snapshot.labels.clear();
        if !is_valid(&snapshot.sandbox) {
            return Err("the sandbox's name is none".to_owned());
        }
        if snapshot.size > SIZE_MAX {
            return Err("its disk is too large".to_owned());
        }
        match &snapshot.base {
            BaseName::Image(image) => {
                let digest = image.parse_digest();
                digest.map_err(|error| format!("its image has a bad digest: {error}"))?;
            }
            BaseName::Disk(_) => return Err("it names a file of another machine".to_owned()),
            BaseName::DiskElsewhere { disk, .. } if disk.in_place => {
                return Err(
                    "its root disk is one that is written to, which has no snapshots".to_owned(),
                );
            }
            BaseName::DiskElsewhere { .. } if snapshot.memory.is_some() => {
                return Err("it has memory, and a root disk that is not here".to_owned());
            }
            BaseName::DiskElsewhere { .. } => {}
        }
        let length = |file: &Option<Identity>| file.as_ref().map(|file| file.size);
        let (disk, memory) = (length(&self.files.disk), length(&self.files.memory));
        if disk != Some(snapshot.size).filter(|size| *size > 0) {
            return Err("its disk has another size than its snapshot".to_owned());
        }
        let parts = [
            memory.is_some(),
            self.files.machine.is_some(),
            self.needs.is_some(),
        ];
        let Some(machine) = &snapshot.memory else {
            return match (disk, parts) {
                (None, _) => Err("it has neither a disk nor a memory".to_owned()),
                (_, [false, false, false]) => Ok(()),
                _ => Err("it has a part of a machine".to_owned()),
            };
        };
        if parts != [true; 3] {
            return Err("it lacks a part of its machine".to_owned());
        }
        if machine.agent().is_none() {
            return Err("it does not say which version its agent has".to_owned());
        }
        let machine = machine.elsewhere()?;
        let upper = match machine.spec.upper {
            Upper::Disk { size } => size,
            _ => 0,
        };
        if upper != snapshot.size {
            return Err("its machine has another disk".to_owned());
        }
        let size = machine.spec.machine;
        size.check().map_err(|error| error.to_string())?;
        // The machine has some beside what its programs were given; its restore compares all of it.
        let least = u64::from(size.memory_mib) << 20;
        if !memory.is_some_and(|memory| (least..=SIZE_MAX).contains(&memory)) {
            return Err("its memory has another size than its machine's".to_owned());
        }
        snapshot.memory = Some(machine);
        Ok(())
    }
}

impl Snapshot {
    /// Returns the files that a registry has as chunks, each with its map.
    pub fn cut_files(&self) -> impl Iterator<Item = (PathBuf, PathBuf)> {
        let memory = match self.memory_part() {
            Some(_) => PART,
            None => MEMORY,
        };
        let files = [DISK, memory].map(|name| self.directory.join(name));
        let files = files.into_iter().map(|file| (map_of(&file), file));
        // Those of one that is packed are not taken.
        files.filter(|(map, file)| map.exists() && file.exists())
    }

    /// Returns whether the repository of `reference` has it.
    pub fn is_beside(&self, reference: &Reference) -> bool {
        self.places.iter().any(|place| place.is_beside(reference))
    }

    /// Returns whether this is the snapshot that `reference` named when it was pulled.
    pub fn is_from(&self, reference: &Reference) -> bool {
        let reference = reference.to_string();
        let mut places = self.places.iter();
        places.any(|place| place.pulled && place.reference == reference)
    }
}

impl Snapshots<'_> {
    /// Reads what goes to a registry of a snapshot.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; [`Error::SnapshotStays`] if it has something that is on this machine only;
    /// [`Error::DamagedSnapshot`]; [`Error::State`].
    pub fn departing(&self, name: &str) -> Result<Departing, Error> {
        // The rest of a memory of which only a part is here comes first.
        complete(self.0.store(), name, &|_, _| true)?;
        self.unpack(name, &mut |_, _| ())?;
        let mut snapshot = self.get(name)?;
        let directory = snapshot.directory.clone();
        let stays = |problem: String| Error::SnapshotStays {
            name: name.to_owned(),
            problem,
        };
        let mut files = Files::default();
        let (mut needs, mut state, mut memory) = (None, None, None);
        if let Some(machine) = snapshot.memory.take() {
            if snapshot.base.disk().is_some() {
                return Err(stays(
                    "it has memory, and its root disk is a file of this machine".into(),
                ));
            }
            snapshot.memory = Some(
                machine
                    .elsewhere()
                    .map_err(|problem| stays(problem.into()))?,
            );
            open_checked(self.0.store(), name, &directory, &machine)?;
            let (of_machine, of_memory) = (directory.join(MACHINE), directory.join(MEMORY));
            let open = File::open(&of_machine).map_err(Error::state("reading", &of_machine))?;
            needs = Some(Needs::of(open).map_err(|error| stays(error.to_string()))?);
            state = Some(fs::read(&of_machine).map_err(Error::state("reading", &of_machine))?);
            files.machine = Some(Identity::of(&of_machine)?);
            let (identity, file) = identity_of_memory(&machine, &of_memory)?;
            files.memory = Some(identity);
            memory = Some((file, of_memory));
        }
        let mut disk = None;
        if snapshot.size > 0 {
            let path = directory.join(DISK);
            let (identity, file) = Identity::opened(&path)?;
            files.disk = Some(identity);
            disk = Some((file, path));
        }
        snapshot.base = snapshot.base.elsewhere();
        snapshot.base.forget_names();
        snapshot.labels.clear();
        snapshot.places.clear();
        Ok(Departing {
            document: Document {
                format: FORMAT,
                made_by: env!("CARGO_PKG_VERSION").to_owned(),
                needs,
                snapshot,
                files,
            },
            disk,
            memory,
            machine: state,
        })
    }

    /// Makes the snapshot `name` of one that a registry has at `place`. `image` is the digest and the name of its image,
    /// which is in the store. `fetch` fills its files, each byte of which is compared. With `is_lazy`, only the map is
    /// fetched of its memory now. One that was pulled by the same name is replaced.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::BadSnapshotName`]; [`Error::SnapshotRefused`] if a file is another one than the
    /// document says; those of `fetch`.
    pub fn arrive<E: From<Error>>(
        &self,
        arriving: Arriving,
        name: &str,
        image: Option<&Reference>,
        place: Place,
        is_lazy: bool,
        fetch: impl FnOnce(Landings) -> Result<(), E>,
    ) -> Result<(Snapshot, Notes), E> {
        let Arriving {
            reference,
            document:
                Document {
                    mut snapshot,
                    files,
                    ..
                },
        } = arriving;
        if let (BaseName::Image(base), Some(image)) = (&mut snapshot.base, image) {
            base.reference = Some(image.to_string());
        }
        name.clone_into(&mut snapshot.name);
        snapshot.places = vec![place];
        let same = self
            .get(name)
            .ok()
            .filter(|other| other.is_from(&reference));
        let was_pulled: super::new::Replaces =
            |other| other.places.iter().any(|place| place.pulled);
        let mut notes = Notes::default();
        let replaces = same.map(|_| was_pulled);
        let (snapshot, _lock) = self.add(snapshot, replaces, claim_for_pull, |snapshot| {
            let directory = snapshot.directory.clone();
            let size = |file: &Option<Identity>| file.as_ref().map(|file| file.size);
            let sizes = [&files.disk, &files.memory, &files.machine].map(size);
            fetch(Landings::new(&directory, sizes, is_lazy)?)?;
            for (part, file) in [
                (DISK, &files.disk),
                (MACHINE, &files.machine),
                (MEMORY, &files.memory),
            ] {
                let Some(expected) = file.as_ref().filter(|_| part != MEMORY || !is_lazy) else {
                    continue;
                };
                let path = directory.join(part);
                let found = Identity::of(&path)?;
                if found != *expected {
                    let problem = format!(
                        "its {part} has {} bytes and the digest {}, and its config says {} and {}",
                        found.size, found.sha256, expected.size, expected.sha256
                    );
                    let name = reference.familiar();
                    return Err(Error::SnapshotRefused { name, problem }.into());
                }
                sync(&path).map_err(Error::state("writing", &path))?;
            }
            let expected = files.memory.as_ref().filter(|_| is_lazy);
            notes = finish(snapshot, &directory, expected)?;
            Ok::<_, E>(())
        })?;
        Ok((snapshot, notes))
    }

    /// Notes that a registry has a snapshot that was made at `created`, and keeps the maps of its disk and of its memory.
    /// Does nothing if another one has its name now.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::State`].
    pub fn note_place(
        &self,
        name: &str,
        created: i64,
        place: Place,
        maps: [Option<Vec<u8>>; 2],
    ) -> Result<(), Error> {
        let _names = self.0.directory().lock()?;
        let mut snapshot = self.get(name)?;
        if snapshot.created != created {
            return Ok(());
        }
        for (map, file) in maps.into_iter().zip([DISK, MEMORY]) {
            if let Some(map) = map {
                let path = map_of(&snapshot.directory.join(file));
                publish(&path, &map).map_err(Error::state("writing", &path))?;
            }
        }
        let mut place = place;
        let mut others = snapshot.places.iter().filter(|other| other.pulled);
        let is_same = |other: &&Place| {
            (&other.reference, &other.manifest) == (&place.reference, &place.manifest)
        };
        if let Some(same) = others.find(is_same) {
            // What is pushed where it came from is still what was pulled.
            if !place.pulled {
                place.pulled = true;
                place.signers.clone_from(&same.signers);
            }
        }
        snapshot
            .places
            .retain(|other| other.reference != place.reference);
        snapshot.places.push(place);
        let directory = &snapshot.directory;
        write_record(&snapshot).map_err(Error::state("writing", directory))
    }
}

/// Completes a snapshot whose files are here. `expected` is what its memory is to have if that comes later.
fn finish(
    snapshot: &mut Snapshot,
    directory: &Path,
    expected: Option<&Identity>,
) -> Result<Notes, Error> {
    let Some(machine) = &mut snapshot.memory else {
        return settle(&directory.join(DISK));
    };
    let path = directory.join(if expected.is_some() { PART } else { MEMORY });
    let look = || match expected {
        // It is the memory's stamp no more once that has come: then the digest is compared.
        Some(Identity { sha256, .. }) => Ok(Written {
            stamp: Stamp::of(&path)?,
            sha256: sha256.clone(),
        }),
        None => written(&path),
    };
    machine.set_written(look().map_err(Error::state("reading", &path))?);
    describe(directory, machine)?;
    Ok(Notes::default())
}

/// Returns the identity of a memory, whose digest is known if it was checked, and its file.
fn identity_of_memory(machine: &SavedMachine, path: &Path) -> Result<(Identity, File), Error> {
    let Some(written) = machine.written() else {
        return Identity::opened(path);
    };
    let open = || -> io::Result<_> {
        let file = File::open(path)?;
        Ok((file.metadata()?.len(), file))
    };
    let (size, file) = open().map_err(Error::state("reading", path))?;
    let sha256 = written.sha256.clone();
    Ok((Identity { size, sha256 }, file))
}
