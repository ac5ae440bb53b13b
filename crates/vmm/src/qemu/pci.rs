//! Assigns addresses on the machine's one PCI bus.
//!
//! Explicit addresses keep a machine the same with any version of QEMU, and eight functions a slot
//! make room for far more devices than there are slots.

use std::fmt;

/// A device and function on bus 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    slot: u8,
    function: u8,
}

impl fmt::Display for Address {
    /// Formats the address for QEMU's `addr` property: `slot.function`, hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.slot, self.function)
    }
}

/// Allocates addresses, densely: a guest looks at functions 1 to 7 of a slot only if there is a
/// function 0.
#[derive(Debug, Default)]
pub(super) struct Functions {
    used: u8,
}

/// The host bridge has slot 0 and the PC's south bridge slot 1.
const FIRST_SLOT: u8 = 2;
const SLOTS: u8 = 32;
const FUNCTIONS: u8 = 8;

impl Functions {
    /// The maximum number of devices.
    pub(super) const COUNT: usize = (SLOTS - FIRST_SLOT) as usize * FUNCTIONS as usize;

    /// Returns the next address; None when the bus is full.
    pub(super) fn next(&mut self) -> Option<Address> {
        let address = Address {
            slot: FIRST_SLOT + self.used / FUNCTIONS,
            function: self.used % FUNCTIONS,
        };
        if address.slot >= SLOTS {
            return None;
        }
        self.used += 1;
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bus_fills_slot_by_slot_and_ends() {
        let mut functions = Functions::default();
        let mut all = Vec::new();
        while let Some(address) = functions.next() {
            all.push(address.to_string());
        }
        assert_eq!(all.len(), Functions::COUNT);
        assert_eq!(all[0], "2.0");
        assert_eq!(all[7], "2.7");
        assert_eq!(all[8], "3.0");
        assert_eq!(all.last().unwrap(), "1f.7");
        assert_eq!(functions.next(), None);
    }
}
