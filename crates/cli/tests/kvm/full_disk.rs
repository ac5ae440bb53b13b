//! A host whose disk is full, and our own monitor. `scripts/test-kvm` runs this.

use crate::support::full;

#[test]
fn a_guests_writes_wait_for_room_on_the_host() {
    full::writes_wait_for_room("kvm");
}

#[test]
fn a_sandboxs_end_is_recorded_on_a_full_disk() {
    full::an_end_is_recorded("kvm");
}
