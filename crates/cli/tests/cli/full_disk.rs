//! A host whose disk is full. Needs root.

use crate::support::full;

#[test]
#[ignore = "needs a built guest, and root"]
fn a_guests_writes_wait_for_room_on_the_host() {
    full::writes_wait_for_room("qemu");
}

#[test]
#[ignore = "needs a built guest, and root"]
fn a_sandboxs_end_is_recorded_on_a_full_disk() {
    full::an_end_is_recorded("qemu");
}
