//! What needs a KVM that runs ordinary kernels, on our own monitor. `scripts/test-kvm` runs this.

mod disk;
mod e2b;
mod exec;
mod fork;
mod full_disk;
mod host;
mod layers;
mod lazy;
mod lazy_memory;
mod memory;
#[path = "../cli/network.rs"]
mod network;
mod outside;
mod packed;
mod pool;
mod snapshot;
mod snapshot_registry;
#[path = "../support/mod.rs"]
mod support;
mod upper_folder;
mod verity;
