//! Runs those fuzz targets on mutated seeds that no crate's own tests run.

use micabox_fuzz::mutate::run;
use micabox_fuzz::{chunks, disk, loaded, share, signatures};
use micabox_vmm::kvm::fuzzing;

#[test]
fn mutated_chunk_indexes() {
    run(&chunks::seeds(), 10_000, chunks::index);
}

#[test]
fn mutated_maps_of_snapshots_in_registries() {
    run(&chunks::map_seeds(), 10_000, chunks::map);
}

#[test]
fn mutated_disk_images() {
    run(&disk::seeds(), 1000, disk::image);
}

#[test]
fn mutated_contents_of_a_filesystem_in_memory() {
    run(&loaded::seeds(), 10_000, loaded::sent);
}

#[test]
fn mutated_requests_of_fuse_and_access_control_lists() {
    run(&share::seeds(), 2000, share::requests);
    run(&share::lists(), 10_000, share::list);
}

#[test]
fn mutated_signatures_and_policies() {
    run(&signatures::seeds(), 5000, signatures::signature);
}

#[test]
fn mutated_packets_of_a_guests_sockets() {
    run(&fuzzing::conversations(), 5000, fuzzing::talk);
}

#[test]
fn mutated_states_of_devices() {
    let states = fuzzing::states().into_iter().map(|state| ("state", state));
    run(&states.collect::<Vec<_>>(), 2000, |data| {
        if let Some((kind, script)) = data.split_first() {
            fuzzing::resume(*kind, script);
        }
    });
}

#[test]
fn mutated_saved_machines() {
    run(&[("sample", fuzzing::sample())], 1000, fuzzing::saved);
}
