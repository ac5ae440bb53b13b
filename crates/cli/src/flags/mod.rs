//! Flags as users write them: what is on or off, and Docker's flags that are not here. What the options of a sandbox are is
//! in `crates/spec`.

mod booleans;
mod refused;

pub use booleans::parse;
pub use refused::refusal;
