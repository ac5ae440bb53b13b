//! The machine's generation ID (Microsoft's "Virtual Machine Generation ID"): a number unique to a
//! machine, by which a kernel notices that it runs in a copy of its machine, and draws new random
//! numbers.

use micabox_ground::random;
use vm_memory::{Bytes, GuestAddress};

use super::memory::{GuestMemory, layout};

/// The input of the interrupt controller that announces a change: one that no device of a PC uses
/// here.
pub(crate) const INTERRUPT: u32 = 3;

/// Gives the machine a new number.
pub(crate) fn renew(memory: &GuestMemory) -> std::io::Result<()> {
    let number: [u8; 16] = random()?;
    memory
        .ram()
        .write_slice(&number, GuestAddress(layout::GENERATION))
        .map_err(std::io::Error::other)
}
