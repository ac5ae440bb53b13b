//! Images, layers and the store, as other programs of this machine and hostile ones make them.

mod against_gnu_tar;
mod append_layer;
mod archives;
mod blobs;
mod devices;
mod disk_tree;
mod files;
mod full_disk;
#[allow(dead_code, reason = "the pull tests use more of it")]
mod image;
mod images;
mod jail;
mod layer;
mod layer_model;
mod layer_rules;
mod load;
mod metadata;
mod mutations;
mod native_layers;
mod packed;
mod private;
mod processes;
mod pruned;
mod published_bits;
mod save;
mod share;
mod store;
mod tar_dialects;
mod trimmed;

// Conversions run in a worker.
micabox_jail::run_if_worker_before_main!(&[micabox_image::WORKER]);
