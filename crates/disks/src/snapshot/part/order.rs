//! The order in which a start read a memory that was not all here. Later ones fetch its chunks before they are read.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use micabox_ground::publish;
use micabox_lazy::Order;

use super::super::Snapshot;
use super::super::names::ORDER;
use super::open::Opened;

/// Most bytes of an order: those of the document that it comes in from a registry.
const MOST: u64 = 4 << 20;

impl Snapshot {
    /// Returns the order in which a start read its memory; none if there was no start before that was all here, or none
    /// that can be read.
    pub fn memory_order(&self) -> Option<Order> {
        of(&self.directory)
    }
}

/// Returns the order of the snapshot in a directory.
pub(super) fn of(directory: &Path) -> Option<Order> {
    let mut text = Vec::new();
    let file = File::open(directory.join(ORDER)).ok()?;
    file.take(MOST).read_to_end(&mut text).ok()?;
    let order: Order = serde_json::from_slice(&text).ok()?;
    (!order.is_empty()).then_some(order)
}

/// Keeps the order in which a memory was read so far, unless the snapshot has one of another start.
pub(super) fn keep(opened: &Opened) -> io::Result<()> {
    let directory = &opened.snapshot.directory;
    match opened.file.order_to_keep(of(directory).as_ref()) {
        // Another snapshot may have the name now.
        Some(order) if opened.is_there() => {
            publish(&directory.join(ORDER), &serde_json::to_vec(&order)?)
        }
        _ => Ok(()),
    }
}
