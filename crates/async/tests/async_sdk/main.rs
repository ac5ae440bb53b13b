//! The SDK as a program on tokio uses it: this test is its own `mica`.

mod attached;
mod cases;
mod commands;
mod files;
mod sandbox;
mod support;

micabox_jail::run_if_worker_before_main!(&micabox::worker_kinds());
