//! Starts processes, and confines them from their first instruction on.

pub(crate) mod cgroup;
pub(crate) mod child;
pub(crate) mod confine;
pub(crate) mod supervised;
