//! The remaining devices of a PC: a serial port, a clock chip without a clock, and ways to turn the
//! machine off.

mod cmos;
pub(crate) mod power;
pub(crate) mod serial;

pub(crate) use cmos::Cmos;
pub(crate) use serial::Serial;
