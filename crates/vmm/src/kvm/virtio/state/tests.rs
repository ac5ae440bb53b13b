use micabox_ground::lock;

use super::*;
use crate::kvm::virtio::driver::{Driver, WRITE};
use crate::kvm::virtio::rng::Rng;

/// Returns the state as it is read from a file.
fn written(state: &State) -> State {
    postcard::from_bytes(&postcard::to_allocvec(state).unwrap()).unwrap()
}

#[test]
fn a_copy_serves_what_the_original_was_asked_for() {
    let mut driver = Driver::new(Box::new(Rng));
    let buffer = driver.buffer(&[0; 64]);
    driver.add(0, &[(buffer, 32, WRITE)]);
    driver.run(0);
    assert_eq!(driver.used(0).len(), 1);
    // The driver has added a chain, and the device has not processed it yet.
    let head = driver.add(0, &[(buffer + 32, 32, WRITE)]);
    let state = lock(&driver.transport).save();
    driver.replace(Box::new(Rng), written(&state)).unwrap();
    driver.host();
    assert_eq!(driver.used(0), [(head, 32)]);
    assert_ne!(driver.read(buffer + 32, 32), [0; 32]);
    // The device continues to work.
    let head = driver.add(0, &[(buffer, 8, WRITE)]);
    driver.run(0);
    assert_eq!(driver.used(0), [(head, 8)]);
}

#[test]
fn another_devices_state_is_refused() {
    let driver = Driver::new(Box::new(Rng));
    let state = lock(&driver.transport).save();
    for spoil in [
        (|state| state.kind = 1) as fn(&mut State),
        |state| state.queues.clear(),
        |state| state.queues[0].size = 3,
        |state| state.queues[0].max_size = 1024,
        |state| state.active = Some(Vec::new()),
        |state| {
            state.active.as_mut().unwrap()[0]
                .as_mut()
                .unwrap()
                .descriptors = u64::MAX - 15
        },
    ] {
        let mut spoilt = written(&state);
        spoil(&mut spoilt);
        let mut other = Driver::new(Box::new(Rng));
        assert!(other.replace(Box::new(Rng), spoilt).is_err());
    }
}
