//! The server's process, which is this program.

mod changes;
mod descriptors;
mod guest;
mod server;

micabox_jail::run_if_worker_before_main!(&[micabox_share::KIND]);
