//! The engine, the check and the repairs, beside e2fsprogs, the kernel's ext4 and a model.

mod bombs;
mod check;
mod crash;
mod engine;
mod errors;
mod foreign;
mod hostile;
mod kernel;
mod mkfs;
mod mutations;
mod orphans;
mod random;
mod replay;
mod resize;
mod structures;
mod support;
