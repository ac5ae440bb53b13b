//! Snapshots that go to registries and come from them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use micabox::{
    Arriving, Beside, Cancel, Kept, Landing, Landings, Notes, Place, Sandboxes, Snapshot,
};
use micabox_ground::publish;
use micabox_image::manifest::ManifestError;
use micabox_image::progress::{self, Event, LayerState, Phase, Progress, Silent};
use micabox_image::{Descriptor, Digest, Reference, Store};
use micabox_program::failure::Failure;
use micabox_program::{bars, notes, settings};
use micabox_spec::options::MachineOptions;
use micabox_transfer::snapshot::{
    ARTIFACT, Cargo, CutFile, Offer, Part, SnapshotPushed, Source, SparseFile, Target,
    offer_blocking, push_image_blocking, push_snapshot_blocking,
};
use micabox_transfer::{
    PullError, PullOptions, PullPolicy, PushError, PushOptions, pull_blocking, push_order_blocking,
};

use crate::lazy::FUSE;
use crate::pulls::Pulls;

/// How often the end of another process's pull is waited for.
const MOST_WAITS: usize = 3;

/// What is wrong where the image of a snapshot has no digest.
const NOT_OF_IMAGE: &str = "the snapshot is of an image that the store lacks";

/// Returns whether a pull has failed only because the name is that of a snapshot, and of no image.
pub fn is_of_snapshot(error: &PullError) -> bool {
    let PullError::Manifest { source, .. } = error else {
        return false;
    };
    matches!(&**source, ManifestError::Artifact(kind) if kind == ARTIFACT)
}

/// Pushes a snapshot, and its image if the repository lacks it. Of its chunks, those are sent that no snapshot has that
/// this store has pushed to the repository.
pub fn push_snapshot(
    store: &Store,
    name: &str,
    destination: &Reference,
    options: &PushOptions,
    progress: &dyn Fn() -> Arc<dyn Progress>,
) -> Result<SnapshotPushed, Failure> {
    let sandboxes = settings::sandboxes(store)?;
    let snapshot = sandboxes.snapshot(name)?;
    complete(&sandboxes, &snapshot, &*progress(), &|| false)?;
    if snapshot.is_packed() {
        sandboxes.unpack(&Kept::Snapshot(name.to_owned()), &*progress())?;
    }
    let mut departing = sandboxes.departing_snapshot(name)?;
    let image = match departing.image() {
        None => None,
        Some(image) => {
            let digest = image.parse_digest();
            let digest = digest.map_err(|error| Failure::of(&error).context(NOT_OF_IMAGE))?;
            let pushed = push_image_blocking(store, &digest, destination, options, progress())?;
            pushed.digest().copied()
        }
    };
    let sparse = |part, (file, path)| SparseFile { part, file, path };
    let (disk, memory) = (departing.disk.take(), departing.memory.take());
    let disk = disk.map(|disk| sparse(Part::Disk, disk));
    let memory = memory.map(|memory| sparse(Part::Memory, memory));
    let created = departing.created();
    let cargo = Cargo {
        parts: disk.into_iter().chain(memory).collect(),
        machine: departing.machine.take(),
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
        signers: Vec::new(),
    };
    let mut maps = std::mem::take(&mut pushed.maps);
    let maps = [Part::Disk, Part::Memory].map(|part| {
        let place = maps.iter().position(|(other, _)| *other == part);
        place.map(|place| maps.swap_remove(place).1)
    });
    // Without it, a later push finds fewer chunks.
    let _: Result<(), micabox::Error> = sandboxes.note_snapshot_place(name, created, place, maps);
    Ok(pushed)
}

/// Pushes the order in which a lazy start of a snapshot has read its memory to where the snapshot was pulled from. Returns
/// its name.
pub fn push_snapshot_order(
    store: &Store,
    name: &str,
    options: &PushOptions,
) -> Result<Reference, Failure> {
    let snapshot = settings::sandboxes(store)?.snapshot(name)?;
    let order = snapshot.memory_order();
    let order = order.ok_or_else(|| PushError::NoOrder(name.to_owned()))?;
    let mut places = snapshot.places.iter();
    let place = places.find(|place| place.pulled);
    let parsed = place.and_then(|place| {
        let reference = place.reference.parse::<Reference>().ok()?;
        Some((reference, place.manifest.parse::<Digest>().ok()?))
    });
    let (reference, manifest) = parsed.ok_or_else(|| PushError::NoDestination(name.to_owned()))?;
    Ok(push_order_blocking(
        store, &reference, &manifest, &order, options,
    )?)
}

fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::of(error).context(&path.display().to_string())
}

/// Returns the manifests of the snapshots that this store has pushed to the repository of `destination`, the last first.
fn others(sandboxes: &Sandboxes, destination: &Reference) -> Result<Vec<Digest>, Failure> {
    let mut snapshots = sandboxes.snapshots()?;
    snapshots.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.created));
    let places = snapshots.iter().flat_map(|snapshot| &snapshot.places);
    let pushed = places.filter(|place| !place.pulled && place.is_beside(destination));
    let mut pushed: Vec<Digest> = pushed
        .filter_map(|place| place.manifest.parse().ok())
        .collect();
    pushed.dedup();
    Ok(pushed)
}

/// Pulls a snapshot and the image that it is of. It is called `name`, or as its reference. One that is here already is
/// not fetched again; one that the same reference named before is replaced. Where the options are lazy, its memory comes
/// later. Returns what is to be known of its disk as well.
pub fn pull_snapshot(
    store: &Store,
    reference: &Reference,
    name: Option<&str>,
    options: &PullOptions,
    progress: &dyn Fn() -> Arc<dyn Progress>,
) -> Result<(Snapshot, Notes), Failure> {
    for _ in 0..MOST_WAITS {
        let mut is_free = false;
        let pulled = pull_once(store, reference, name, options, progress, &mut is_free);
        if is_free || pulled.is_ok() {
            return pulled;
        }
        // Another process may be pulling it.
        let name = called(reference, name)?;
        settings::sandboxes(store)?.wait_for_snapshot(&name);
    }
    pull_once(store, reference, name, options, progress, &mut false)
}

/// Returns what a snapshot is to be called here.
fn called(reference: &Reference, name: Option<&str>) -> Result<String, Failure> {
    Arriving::called(reference, name).map_err(|error| {
        let failure = Failure::from(error);
        failure.hint("name it: `mica pull --name NAME REF`, and `mica run --from NAME`")
    })
}

/// Pulls a snapshot. `is_free` becomes true once its name is this process's, or another one's that is complete.
fn pull_once(
    store: &Store,
    reference: &Reference,
    name: Option<&str>,
    options: &PullOptions,
    progress: &dyn Fn() -> Arc<dyn Progress>,
    is_free: &mut bool,
) -> Result<(Snapshot, Notes), Failure> {
    let sandboxes = settings::sandboxes(store)?;
    let name = called(reference, name)?;
    // What fails before the snapshot is made fails again.
    *is_free = true;
    let offer = offer_blocking(reference, options, progress())?;
    let place = Place {
        reference: reference.to_string(),
        manifest: offer.digest().to_string(),
        pulled: true,
        signers: offer.signers().to_vec(),
    };
    let other = sandboxes.snapshot(&name).ok();
    if let Some(other) = other {
        let mut places = other.places.iter();
        let here = places.find(|here| here.pulled && here.manifest == place.manifest);
        if let Some(here) = here {
            if here.reference == place.reference && here.signers != place.signers {
                sandboxes.note_snapshot_place(&name, other.created, place, [None, None])?;
            }
            if !options.lazy {
                complete(&sandboxes, &other, &*progress(), &|| false)?;
            }
            return Ok((sandboxes.snapshot(&name)?, Notes::default()));
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
            // A push has brought it as archives, of which no part can be used.
            lazy: false,
            ..options.clone()
        };
        pull_blocking(store, image, &options, progress())?;
    }
    let is_lazy = options.lazy && offer.parts().contains(&Part::Memory) && can_serve(&*progress());
    // Of the same repository only: a registry sees what it is not asked for.
    let mut here = sandboxes.snapshots()?;
    here.retain(|other| other.is_beside(reference));
    let here = here.iter().flat_map(Snapshot::cut_files);
    let here: Vec<_> = here.map(|(map, file)| CutFile { map, file }).collect();
    *is_free = false;
    let fetch = |landings| {
        *is_free = true;
        fetch(store, &offer, landings, here)
    };
    let (snapshot, notes) =
        sandboxes.arrived_snapshot(arriving, &name, image.as_ref(), place, is_lazy, fetch)?;
    Ok((snapshot, notes))
}

/// Returns whether a memory can be served of which only a part is here. Otherwise the reason is reported.
fn can_serve(progress: &dyn Progress) -> bool {
    match File::options().read(true).write(true).open(FUSE) {
        Ok(_) => true,
        Err(error) => {
            progress.event(Event::Notice(&fetched_before(&format!("{FUSE}: {error}"))));
            false
        }
    }
}

/// What is reported where a memory can't be served.
fn fetched_before(why: &str) -> String {
    format!("all of the snapshot's memory is fetched before the start: {why}")
}

/// Fetches the rest of a snapshot's memory, if only a part of it is here, until `is_cancelled`.
fn complete(
    sandboxes: &Sandboxes,
    snapshot: &Snapshot,
    progress: &dyn Progress,
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), Failure> {
    let Some(part) = snapshot.memory_part() else {
        return Ok(());
    };
    let name = &snapshot.name;
    let diff_id = &Digest::of(name.as_bytes());
    let blob = Descriptor {
        media_type: ARTIFACT.to_owned(),
        digest: *diff_id,
        size: part.all,
    };
    progress.event(Event::Phase(Phase::Layers));
    progress.event(Event::Layers(&[progress::Layer {
        diff_id: *diff_id,
        blob,
    }]));
    let is_whole = sandboxes.complete_snapshot(name, &|bytes, _| {
        let state = LayerState::Received { bytes };
        progress.event(Event::Layer { diff_id, state });
        !is_cancelled()
    })?;
    if is_whole {
        let state = LayerState::Done;
        progress.event(Event::Layer { diff_id, state });
        progress.event(Event::Phase(Phase::Done));
        Ok(())
    } else if is_cancelled() {
        Err(micabox::Error::Cancelled.into())
    } else {
        Err(micabox::Error::NoSuchSnapshot(name.clone()).into())
    }
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
        is_lazy: landing.beside.is_some(),
    };
    let memory = landings.memory.as_ref();
    if let Some(Beside { manifest, order }) = memory.and_then(|memory| memory.beside.as_ref()) {
        publish(manifest, offer.manifest()).map_err(|error| at(manifest, &error))?;
        if let Some(found) = offer.order() {
            let text = serde_json::to_vec(&found).unwrap_or_default();
            publish(order, &text).map_err(|error| at(order, &error))?;
        }
    }
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
/// one that a registry has. Of a memory of which only a part is here the rest comes first, unless the start is lazy.
pub(crate) fn find_snapshot(
    machine: &MachineOptions,
    store: &Store,
    name: &str,
    pulls: Pulls<'_>,
    cancel: &Cancel,
) -> Result<Snapshot, Failure> {
    let sandboxes = settings::sandboxes(store)?;
    let progress = |what: &str| match pulls.progress {
        Some(progress) => Arc::clone(progress),
        None if machine.quiet => Arc::new(Silent) as _,
        None => bars::watch(what),
    };
    let found = sandboxes.snapshot(name);
    // A name of a registry's has a part before a slash, and no snapshot has one.
    let reference = name
        .parse::<Reference>()
        .ok()
        .filter(|_| name.contains('/'));
    let snapshot = match (found, &reference) {
        (Ok(found), _) => found,
        (Err(missing), None) => return Err(missing.into()),
        (Err(missing), Some(reference)) => {
            let mut options = options(machine, cancel)?;
            let here = sandboxes.snapshots()?;
            let here = here.into_iter().find(|other| other.is_from(reference));
            match here {
                Some(here) if options.policy != PullPolicy::Always => here,
                None if options.policy == PullPolicy::Never => {
                    return Err(Failure::new(missing.to_string())
                        .hint("the pull policy is `never`: `mica pull` it first"));
                }
                here => {
                    if let Some(bound) = pulls.bound {
                        bound.may_pull(reference, &options.settings)?;
                        options.layers_from_elsewhere = false;
                    }
                    let watch = || progress(&reference.familiar());
                    let name = here.as_ref().map(|snapshot| snapshot.name.as_str());
                    let (snapshot, found) =
                        pull_snapshot(store, reference, name, &options, &watch)?;
                    if pulls.progress.is_none() && !machine.quiet {
                        notes::print(&found, &snapshot.name);
                    }
                    snapshot
                }
            }
        }
    };
    if snapshot.memory_part().is_none() {
        return Ok(snapshot);
    }
    let options = options(machine, cancel)?;
    let progress = progress(&snapshot.name);
    if options.lazy || options.policy == PullPolicy::Never {
        match sandboxes.serve_snapshot(&snapshot.name) {
            Ok(()) => return Ok(snapshot),
            Err(error @ micabox::Error::HolderStuck(_)) => return Err(error.into()),
            Err(error) => progress.event(Event::Notice(&fetched_before(&error.to_string()))),
        }
    }
    complete(&sandboxes, &snapshot, &*progress, &|| cancel.is_cancelled())?;
    Ok(sandboxes.snapshot(&snapshot.name)?)
}

/// Returns the settings' options, with those of this start.
fn options(machine: &MachineOptions, cancel: &Cancel) -> Result<PullOptions, Failure> {
    let mut options = PullOptions::new(settings::settings()?);
    if let Some(lazy) = machine.lazy {
        options.lazy = lazy;
    }
    options.cancellation = cancel.pulls();
    Ok(options)
}
