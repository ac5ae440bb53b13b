//! A host whose disk is full, and our own monitor. `scripts/test-kvm` runs this.

#[path = "support/full.rs"]
mod full;
mod support;

#[test]
fn writes_wait_for_room_on_the_host() {
    full::writes_wait_for_room("kvm");
}

#[test]
fn an_end_is_recorded_without_room_for_it() {
    full::an_end_is_recorded("kvm");
}
