//! The clock chip: registers that read as 0.
//!
//! The ACPI tables declare that there is no clock chip, and the guest's time comes from elsewhere.
//! A kernel that reads the chip anyway must not see all bits set: that would be a clock whose
//! update never ends.

/// The clock chip.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Cmos {
    index: u8,
}

impl Cmos {
    pub(crate) const INDEX: u16 = 0x70;
    pub(crate) const DATA: u16 = 0x71;

    /// Register D: the time and RAM are valid.
    const REGISTER_D: u8 = 0x0d;
    const VALID: u8 = 0x80;

    /// Selects a register. The uppermost bit masks non-maskable interrupts, which never occur here.
    pub(crate) fn select(&mut self, index: u8) {
        self.index = index & 0x7f;
    }

    pub(crate) fn read(&self, port: u16) -> u8 {
        match (port, self.index) {
            (Self::INDEX, index) => index,
            (_, Self::REGISTER_D) => Self::VALID,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_has_an_update_in_progress() {
        let mut cmos = Cmos::default();
        cmos.select(0x8a);
        assert_eq!(cmos.read(Cmos::DATA) & 0x80, 0);
        cmos.select(0x0d);
        assert_eq!(cmos.read(Cmos::DATA), 0x80);
    }
}
