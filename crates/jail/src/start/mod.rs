//! A process's start, and what it is kept from since its first instruction.

pub(crate) mod cgroup;
pub(crate) mod child;
pub(crate) mod confine;
