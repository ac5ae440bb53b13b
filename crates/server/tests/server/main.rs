//! `mica-server` without a sandbox: its messages and its command line. What clients do with it is tested where `mica` is.

mod line;
mod messages;
