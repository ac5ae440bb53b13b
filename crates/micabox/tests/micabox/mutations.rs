//! The fuzz targets' work on mutated records and heads of snapshots.

#[path = "../../../../fuzz/src/files.rs"]
mod files;
#[path = "../../../../fuzz/src/jailed.rs"]
mod jailed;
#[path = "../../../../fuzz/src/mutate.rs"]
mod mutate;
#[path = "../../../../fuzz/src/snapshot.rs"]
mod snapshot;
#[path = "../../../../fuzz/src/wire.rs"]
#[allow(dead_code, reason = "its own target is another crate's")]
mod wire;

#[test]
fn a_mutated_head_describes_a_disk_that_can_be() {
    mutate::run(&snapshot::seeds(), 2000, snapshot::file);
}

#[test]
fn a_mutated_config_of_a_snapshot_in_a_registry_names_an_image_beside_it() {
    mutate::run(&snapshot::config_seeds(), 2000, snapshot::config);
}

#[test]
fn a_mutated_record_is_written_as_it_was_read() {
    mutate::run(&snapshot::records(), 2000, snapshot::record);
}

#[test]
fn a_mutated_workers_answer_is_read_as_it_was_written() {
    mutate::run(&jailed::seeds(), 2000, jailed::answers);
}

#[test]
fn a_mutated_operation_on_files_leads_nowhere_else() {
    mutate::run(&files::seeds(), 2000, files::operation);
}
