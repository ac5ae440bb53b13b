//! What is left of a PC: a serial port, a clock chip that knows nothing and ways to turn
//! the machine off.

mod cmos;
pub(crate) mod power;
pub(crate) mod serial;

pub(crate) use cmos::Cmos;
pub(crate) use serial::Serial;
