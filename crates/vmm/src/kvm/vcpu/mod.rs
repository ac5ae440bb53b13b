//! Virtual processors, a thread each.

pub(crate) mod cpuid;
pub(crate) mod registers;
mod run;

pub(crate) use run::run;
