//! Snapshots and volumes that a sandbox is to use and that are packed: they are unpacked with progress, before its start
//! would do that without.

use std::sync::Arc;

use micabox::{Kept, Mount, MountSource, Sandboxes, Snapshot};
use micabox_image::progress::{Progress, Silent};
use micabox_program::bars;
use micabox_program::failure::Failure;
use micabox_spec::options::MachineOptions;

use crate::pulls::Pulls;

/// Makes a snapshot whole. Returns what is known of it then.
pub(super) fn whole(
    sandboxes: &Sandboxes,
    snapshot: Snapshot,
    machine: &MachineOptions,
    pulls: Pulls<'_>,
) -> Result<Snapshot, Failure> {
    if !snapshot.is_packed() {
        return Ok(snapshot);
    }
    unpack(
        sandboxes,
        &Kept::Snapshot(snapshot.name.clone()),
        machine,
        pulls,
    )?;
    Ok(sandboxes.snapshot(&snapshot.name)?)
}

/// Makes volumes whole that are mounted.
pub(super) fn unpack_volumes(
    sandboxes: &Sandboxes,
    mounts: &[Mount],
    machine: &MachineOptions,
    pulls: Pulls<'_>,
) -> Result<(), Failure> {
    for mount in mounts {
        let MountSource::Volume(volume) = &mount.source else {
            continue;
        };
        // One that is missing is made.
        let found = sandboxes.volume(&volume.name);
        if found.is_ok_and(|volume| volume.is_packed()) {
            unpack(
                sandboxes,
                &Kept::Volume(volume.name.clone()),
                machine,
                pulls,
            )?;
        }
    }
    Ok(())
}

fn unpack(
    sandboxes: &Sandboxes,
    kept: &Kept,
    machine: &MachineOptions,
    pulls: Pulls<'_>,
) -> Result<(), Failure> {
    let progress: Arc<dyn Progress> = match pulls.progress {
        Some(progress) => Arc::clone(progress),
        None if machine.quiet => Arc::new(Silent),
        None => bars::watch_unpacking(&kept.to_string()),
    };
    Ok(sandboxes.unpack(kept, &*progress)?)
}
