//! A sandbox's start: its settings, and the steps from them to a sandbox that runs.

mod attempt;
mod create;
mod devices;
mod jobs;
mod owner;
mod planned;
mod record;
mod shared_kernel;
mod stock;
mod stopped;

use std::path::PathBuf;

use micabox_disks::{Base, Patch};
use micabox_image::Store;
use micabox_spec::{Spec, Upper};
use micabox_state::SavedMachine;

use crate::{Cancel, GuestFiles};

pub use record::default_cpus_of as default_cpus;
pub use stock::Stock;

/// All settings of a start.
#[derive(Clone)]
pub struct Start {
    /// The store that the sandbox is made in.
    pub store: Store,
    /// What the sandbox is made from.
    pub base: Base,
    /// Its name; a generated one without.
    pub name: Option<String>,
    /// The first command in lists of sandboxes.
    pub description: String,
    /// Its settings.
    pub spec: Spec,
    /// How many virtio-fs devices the machine has at least: a template has some without a folder.
    pub shares: usize,
    /// The changes to make before the first start, in order.
    pub patches: Vec<Patch>,
    /// The snapshot or template that the sandbox starts from.
    pub origin: Option<Origin>,
    /// Whether to reattach the saved machine's first command in place of starting one.
    pub reattaches: bool,
    /// The ID of the sandbox that exists and is to be started.
    pub resumed: Option<String>,
    /// Whether that has never been started.
    pub is_first: bool,
    /// Whether that has a layer of patches.
    pub is_patched: bool,
    /// The guest's kernel and agent; those that are found without.
    pub guest: Option<GuestFiles>,
    /// The filter of the owner's log, and where that goes.
    pub owner_log: Option<(String, OwnerLog)>,
    /// What another thread cancels the start with.
    pub cancel: Cancel,
}

/// Where the log of a sandbox's owner goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerLog {
    /// To this process's stderr. For sandboxes that end with this process.
    Stderr,
    /// To the file `owner.log` in the sandbox's directory, which has the logs of earlier starts.
    File,
}

/// A snapshot or template that a sandbox starts from.
#[derive(Clone)]
pub struct Origin {
    /// The snapshot's name; none for a template.
    pub name: Option<String>,
    /// The directory of the snapshot or template.
    pub directory: PathBuf,
    /// The machine to restore; none if only a disk was saved.
    pub machine: Option<SavedMachine>,
}

impl Start {
    /// Begins a start on an image or a root disk, with default settings.
    pub fn on(store: &Store, base: Base) -> Self {
        let is_in_place = base.disk().is_some_and(|disk| disk.in_place);
        Self {
            store: store.clone(),
            base,
            name: None,
            description: String::new(),
            spec: Spec {
                upper: if is_in_place {
                    Upper::InPlace
                } else {
                    Upper::default()
                },
                ..Spec::default()
            },
            shares: 0,
            patches: Vec::new(),
            origin: None,
            reattaches: false,
            resumed: None,
            is_first: false,
            is_patched: false,
            guest: None,
            owner_log: None,
            cancel: Cancel::default(),
        }
    }

    /// Returns whether there is a layer of patches for a sandbox whose changes are in memory.
    pub fn has_patches(&self) -> bool {
        self.is_patched || !self.patches.is_empty()
    }

    /// Returns the machine to restore; none if the sandbox boots.
    pub fn machine(&self) -> Option<&SavedMachine> {
        self.origin.as_ref()?.machine.as_ref()
    }
}
