//! The ways in which a guest turns the machine off.
//!
//! ACPI's registers are for kernels that have read our tables; all other kernels know the keyboard
//! controller's reset.

use crate::kvm::ending::Ending;

/// ACPI's sleep registers and its reset register, at ports of our choice.
pub(crate) const SLEEP_CONTROL: u16 = 0x600;
pub(crate) const SLEEP_STATUS: u16 = 0x601;
pub(crate) const RESET: u16 = 0x602;
/// The value that resets when written to [`RESET`].
pub(crate) const RESET_VALUE: u8 = 1;
/// The type that the tables give to S5, soft off.
pub(crate) const SOFT_OFF: u8 = 5;

/// The keyboard controller's status and command register. It never has a key.
pub(crate) const KEYBOARD_STATUS: u16 = 0x64;
const KEYBOARD_RESET: u8 = 0xfe;

/// Returns how the machine ends when `value` is written to `port`, if it does.
pub(crate) fn write(port: u16, value: u8) -> Option<Ending> {
    /// `SLP_EN`; the type is in bits 2 to 4.
    const SLEEP: u8 = 1 << 5 | SOFT_OFF << 2;
    matches!(
        (port, value),
        (RESET, RESET_VALUE) | (SLEEP_CONTROL, SLEEP) | (KEYBOARD_STATUS, KEYBOARD_RESET)
    )
    .then_some(Ending::PoweredOff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_power_commands_end_the_machine() {
        for (port, value) in [(0x64, 0xfe), (0x600, 0x34), (0x602, 1)] {
            assert_eq!(write(port, value), Some(Ending::PoweredOff));
        }
        for (port, value) in [(0x64, 0xd1), (0x600, 0x20), (0x602, 0), (0x80, 0xfe)] {
            assert_eq!(write(port, value), None);
        }
    }
}
