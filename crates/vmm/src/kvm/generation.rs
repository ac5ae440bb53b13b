//! The machine's generation: a number that no other machine has, so that a kernel notices
//! that it runs in a copy of the machine that it started in, and draws new random numbers
//! (Microsoft's "Virtual Machine Generation ID").

use rustix::rand::{GetRandomFlags, getrandom};
use vm_memory::{Bytes, GuestAddress};

use super::memory::{GuestMemory, layout};

/// The input of the interrupt controller by which a change is announced: one that no
/// device of a PC's has here.
pub(crate) const INTERRUPT: u32 = 3;

/// Gives the machine another number.
pub(crate) fn renew(memory: &GuestMemory) -> std::io::Result<()> {
    let mut number = [0_u8; 16];
    // Whole, as it always is up to 256 bytes.
    getrandom(&mut number, GetRandomFlags::empty())?;
    memory
        .ram()
        .write_slice(&number, GuestAddress(layout::GENERATION))
        .map_err(std::io::Error::other)
}
