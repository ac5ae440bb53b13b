//! Snapshots that go to registries and come from them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use micabox::{Arriving, Cancel, Landing, Landings, Place, Sandboxes, Snapshot};
use micabox_image::manifest::ManifestError;
use micabox_image::progress::{Progress, Silent};
use micabox_image::{Reference, Store};
use micabox_program::failure::Failure;
use micabox_program::{bars, settings};
use micabox_spec::options::MachineOptions;
use micabox_transfer::snapshot::{
    ARTIFACT, Cargo, CutFile, Offer, Part, SnapshotPushed, Source, SparseFile, Target,
    offer_blocking, push_image_blocking, push_snapshot_blocking,
};
use micabox_transfer::{PullError, PullOptions, PullPolicy, PushOptions, pull_blocking};

use crate::pulls::Pulls;

/// How to send a snapshot.
const NOT_OF_IMAGE: &str = "the snapshot is of an image that the store lacks";

/// Returns whether a pull has failed only because the name is that of a snapshot, and of no image.
pub fn is_of_snapshot(error: &PullError) -> bool {
    let PullError::Manifest { source, .. } = error else {
        return false;
    };
    matches!(&**source, ManifestError::Artifact(kind) if kind == ARTIFACT)
}

/// Pushes a snapshot, and its image if the repository lacks it. Of its chunks, those are sent that no snapshot has that
/// this store or the name itself knows of in the registry.
pub fn push_snapshot(
    store: &Store,
    name: &str,
    destination: &Reference,
    options: &PushOptions,
    progress: &dyn Fn() -> Arc<dyn Progress>,
) -> Result<SnapshotPushed, Failure> {
    let sandboxes = settings::sandboxes(store)?;
    let departing = sandboxes.departing_snapshot(name)?;
    let image = match departing.image() {
        None => None,
        Some(image) => {
            let digest = image.parse_digest();
            let digest = digest.map_err(|error| Failure::of(&error).context(NOT_OF_IMAGE))?;
            let pushed = push_image_blocking(store, &digest, destination, options, progress())?;
            pushed.digest().copied()
        }
    };
    let sparse = |part, path: &PathBuf| {
        let file = File::open(path);
        file.map_err(|error| at(path, &error))
            .map(|file| SparseFile {
                part,
                file,
                path: path.clone(),
            })
    };
    let disk = departing.disk.iter().map(|path| sparse(Part::Disk, path));
    let memory = departing
        .memory
        .iter()
        .map(|path| sparse(Part::Memory, path));
    let cargo = Cargo {
        parts: disk.chain(memory).collect::<Result<_, _>>()?,
        machine: departing.machine.clone(),
        config: departing.document(image.as_ref()),
    };
    let others = others(&sandboxes, destination)?;
    let source = Source {
        store,
        name,
        others: &others,
    };
    let mut pushed = push_snapshot_blocking(&source, cargo, destination, options, progress())?;
    let place = Place {
        reference: destination.to_string(),
        manifest: pushed.manifest_digest.to_string(),
        pulled: false,
    };
    let mut maps = std::mem::take(&mut pushed.maps);
    let maps = [Part::Disk, Part::Memory].map(|part| {
        let place = maps.iter().position(|(other, _)| *other == part);
        place.map(|place| maps.swap_remove(place).1)
    });
    // Without it, a later push finds fewer chunks.
    let _: Result<(), micabox::Error> = sandboxes.note_snapshot_place(name, place, maps);
    Ok(pushed)
}

fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::of(error).context(&path.display().to_string())
}

/// Returns snapshots that are known to be in registries, by their digests: those in the same repository first.
fn others(sandboxes: &Sandboxes, destination: &Reference) -> Result<Vec<Reference>, Failure> {
    let mut others = Vec::new();
    for snapshot in sandboxes.snapshots()? {
        for place in snapshot.places {
            let Ok(reference) = place.reference.parse::<Reference>() else {
                continue;
            };
            let (registry, repository) = (reference.registry(), reference.repository());
            let name = format!("{registry}/{repository}@{}", place.manifest);
            if let Ok(name) = name.parse::<Reference>() {
                let is_elsewhere = repository != destination.repository();
                others.push((is_elsewhere, std::cmp::Reverse(snapshot.created), name));
            }
        }
    }
    others.sort_by_key(|(is_elsewhere, made, _)| (*is_elsewhere, *made));
    let mut names: Vec<Reference> = others.into_iter().map(|(_, _, name)| name).collect();
    names.dedup();
    Ok(names)
}

/// Pulls a snapshot and the image that it is of. It is called `name`, or as its reference. One that is here already is
/// not fetched again; one that the same reference named before is replaced.
pub fn pull_snapshot(
    store: &Store,
    reference: &Reference,
    name: Option<&str>,
    options: &PullOptions,
    progress: &dyn Fn() -> Arc<dyn Progress>,
) -> Result<Snapshot, Failure> {
    let sandboxes = settings::sandboxes(store)?;
    let name = name.map_or_else(|| Arriving::name_of(reference), str::to_owned);
    let offer = offer_blocking(reference, options, progress())?;
    let manifest = offer.digest().to_string();
    let other = sandboxes.snapshot(&name).ok();
    if let Some(other) = other {
        let mut places = other.places.iter();
        if places.any(|place| place.pulled && place.manifest == manifest) {
            return Ok(other);
        }
        if !other.is_from(reference) {
            return Err(Failure::from(micabox::Error::SnapshotExists(name))
                .hint("choose another name with `mica pull --name NAME REF`"));
        }
    }
    let arriving = Arriving::read(reference, offer.config())?;
    let image = arriving.image()?;
    if let Some(image) = &image {
        let options = PullOptions {
            policy: PullPolicy::Missing,
            platform: None,
            ..options.clone()
        };
        pull_blocking(store, image, &options, progress())?;
    }
    let digest = *offer.digest();
    let here = sandboxes.snapshots()?;
    let here = here.iter().flat_map(Snapshot::cut_files);
    let here: Vec<_> = here.map(|(map, file)| CutFile { map, file }).collect();
    let fetch = |landings| fetch(store, &offer, landings, here);
    let (snapshot, _) =
        sandboxes.arrived_snapshot(arriving, &name, image.as_ref(), &digest, fetch)?;
    Ok(snapshot)
}

/// Fills the files of a snapshot.
fn fetch(
    store: &Store,
    offer: &Offer,
    landings: Landings,
    here: Vec<CutFile>,
) -> Result<(), Failure> {
    let refused = |problem: &str| micabox::Error::SnapshotRefused {
        name: offer.reference().familiar(),
        problem: problem.to_owned(),
    };
    let target = |part, landing: Landing| Target {
        file: SparseFile {
            part,
            file: landing.file,
            path: landing.path,
        },
        size: landing.size,
        map: landing.map,
    };
    let disk = landings.disk.map(|disk| target(Part::Disk, disk));
    let memory = landings.memory.map(|memory| target(Part::Memory, memory));
    let targets: Vec<Target> = disk.into_iter().chain(memory).collect();
    if targets.len() != offer.parts().len() {
        return Err(refused("its manifest has other files than its config").into());
    }
    match (landings.machine, offer.machine()?) {
        (None, None) => {}
        (Some(Landing { file, path, .. }), Some(bytes)) => {
            file.write_all_at(&bytes, 0)
                .map_err(|error| at(&path, &error))?;
        }
        _ => return Err(refused("its manifest has another machine than its config").into()),
    }
    Ok(offer.fetch(store, targets, here)?)
}

/// Finds the snapshot that a sandbox is to be made from: one that has the name, or else one that was pulled by it, or else
/// one that a registry has.
pub(crate) fn find_snapshot(
    machine: &MachineOptions,
    store: &Store,
    name: &str,
    pulls: Pulls<'_>,
    cancel: &Cancel,
) -> Result<Snapshot, Failure> {
    let sandboxes = settings::sandboxes(store)?;
    let found = sandboxes.snapshot(name);
    // A name of a registry's has a part before a slash, and no snapshot has one.
    let reference = name
        .parse::<Reference>()
        .ok()
        .filter(|_| name.contains('/'));
    let (Err(missing), Some(reference)) = (&found, &reference) else {
        return Ok(found?);
    };
    let mut options = PullOptions::new(settings::settings()?);
    options.cancellation = cancel.pulls();
    let mut here = sandboxes
        .snapshots()?
        .into_iter()
        .filter(|snapshot| snapshot.is_from(reference));
    let here = here.next();
    match here {
        Some(here) if options.policy != PullPolicy::Always => return Ok(here),
        None if options.policy == PullPolicy::Never => {
            return Err(Failure::new(missing.to_string())
                .hint("the pull policy is `never`: `mica pull` it first"));
        }
        _ => {}
    }
    if let Some(bound) = pulls.bound {
        bound.may_pull(reference, &options.settings)?;
        options.layers_from_elsewhere = false;
    }
    let progress = || match pulls.progress {
        Some(progress) => Arc::clone(progress),
        None if machine.quiet => Arc::new(Silent) as _,
        None => bars::watch(&reference.familiar()),
    };
    let name = here.as_ref().map(|snapshot| snapshot.name.as_str());
    pull_snapshot(store, reference, name, &options, &progress)
}
