//! A host whose disk is full. Needs root.

#[path = "support/full.rs"]
mod full;
mod support;

#[test]
#[ignore = "needs a built guest, and root"]
fn writes_wait_for_room_on_the_host() {
    full::writes_wait_for_room("qemu");
}

#[test]
#[ignore = "needs a built guest, and root"]
fn an_end_is_recorded_without_room_for_it() {
    full::an_end_is_recorded("qemu");
}
