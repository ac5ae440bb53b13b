//! The SDK as a program uses it, with real guests and with such as the tests play. This program is its own `mica`.

mod examples;
mod guests;
mod kinds;
mod mutations;
mod readme;
mod sdk;
mod support;

micabox_jail::run_if_worker_before_main!(&micabox::worker_kinds());
