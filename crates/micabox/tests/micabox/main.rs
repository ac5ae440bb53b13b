//! The SDK as a program uses it, with real guests and with such as the tests play. This program is its own `mica`.

mod examples;
mod guests;
mod kinds;
mod mutations;
mod part_layers;
mod part_memory;
mod readme;
mod sdk;
mod servers;
mod support;

micabox_jail::run_if_worker_before_main!(&micabox::worker_kinds());
