use std::io::{Read, Write};

use micabox_testing::PATIENCE;

use super::*;
use crate::kvm::virtio::driver::{Driver, READ, WRITE};

fn start() -> (Driver, UnixStream) {
    let (host, guest) = UnixStream::pair().unwrap();
    host.set_read_timeout(Some(PATIENCE)).unwrap();
    let console = Console::new("test.0", guest).unwrap();
    (Driver::new(Box::new(console)), host)
}

fn message(event: u16, value: u16) -> [u8; 8] {
    let mut message = [0; 8];
    message[4..6].copy_from_slice(&event.to_le_bytes());
    message[6..].copy_from_slice(&value.to_le_bytes());
    message
}

/// Sends `event` and returns the device's answers.
fn control(driver: &mut Driver, event: u16, value: u16) -> Vec<Vec<u8>> {
    // A buffer is used when the device has a message, and not before.
    let mut answers = std::collections::HashMap::new();
    for _ in 0..4 {
        let buffer = driver.buffer(&[0; 64]);
        answers.insert(driver.add(CONTROL_RECEIVE, &[(buffer, 64, WRITE)]), buffer);
    }
    let said = driver.buffer(&message(event, value));
    driver.add(CONTROL_TRANSMIT, &[(said, 8, READ)]);
    driver.run(CONTROL_TRANSMIT);
    let used = driver.used(CONTROL_RECEIVE);
    let texts = used.iter();
    texts
        .map(|(head, length)| driver.read(answers[head], *length as usize))
        .collect()
}

#[test]
fn the_port_is_announced_by_name() {
    let (mut driver, _host) = start();
    let added = control(&mut driver, 0, 1);
    assert_eq!(added, [message(1, 1).to_vec()]);
    // The same driver again, with fresh buffers.
    let (mut driver, _host) = start();
    let named = control(&mut driver, 3, 1);
    assert_eq!(named.len(), 2);
    assert_eq!(&named[0][8..], b"test.0");
    assert_eq!(named[1], message(6, 1));
    // Other events are ignored.
    let (mut driver, _host) = start();
    assert!(control(&mut driver, 77, 77).is_empty());
}

#[test]
fn bytes_go_both_ways_and_wait_for_room() {
    let (mut driver, mut host) = start();
    host.write_all(b"to the guest").unwrap();
    driver.host();
    assert!(driver.used(RECEIVE).is_empty());
    let room = driver.buffer(&[0; 8]);
    let head = driver.add(RECEIVE, &[(room, 8, WRITE)]);
    driver.run(RECEIVE);
    assert_eq!(driver.used(RECEIVE), [(head, 8)]);
    assert_eq!(driver.read(room, 8), b"to the g");
    driver.add(RECEIVE, &[(room, 8, WRITE)]);
    driver.run(RECEIVE);
    assert_eq!(driver.read(room, 4), b"uest");

    let [one, two] = [&b"to "[..], b"the host"].map(|part| driver.buffer(part));
    driver.add(TRANSMIT, &[(one, 3, READ), (two, 8, READ)]);
    driver.run(TRANSMIT);
    let mut text = [0; 11];
    host.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"to the host");
}

#[test]
fn control_messages_are_answered_without_another_thread() {
    let (mut driver, _host) = start();
    let said = driver.buffer(&message(0, 1));
    let head = driver.add(CONTROL_TRANSMIT, &[(said, 8, READ)]);
    // No other thread is notified or has run.
    let transport = driver.transport.lock().unwrap();
    let queues = transport.notifications().map(|(_, queue)| queue as usize);
    let queues: Vec<_> = queues.collect();
    drop(transport);
    assert_eq!(queues, [RECEIVE, TRANSMIT, CONTROL_RECEIVE]);
    driver.write(0x50, CONTROL_TRANSMIT as u32);
    assert_eq!(driver.used(CONTROL_TRANSMIT), [(head, 0)]);
}

#[test]
fn output_before_a_reset_is_delivered() {
    let (mut driver, mut host) = start();
    let words = driver.buffer(b"bye");
    driver.add(TRANSMIT, &[(words, 3, READ)]);
    driver.write(0x70, 0);
    let mut text = [0; 3];
    host.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"bye");
}

#[test]
fn a_host_that_does_not_read_stops_the_guest_without_loss() {
    const CHUNK: usize = 64 << 10;
    let (mut driver, mut host) = start();
    let bytes: Vec<u8> = (0..CHUNK).map(|n| (n % 251) as u8).collect();
    let buffer = driver.buffer(&bytes);
    for _ in 0..64 {
        driver.add(TRANSMIT, &[(buffer, CHUNK as u32, READ)]);
    }
    driver.run(TRANSMIT);
    let mut done = driver.used(TRANSMIT).len();
    assert!(done < 64);
    let mut received = vec![0; CHUNK];
    for _ in 0..64 {
        host.read_exact(&mut received).unwrap();
        assert!(received == bytes);
        driver.host();
        done += driver.used(TRANSMIT).len();
    }
    assert_eq!(done, 64);
}

#[test]
fn a_host_that_left_closes_the_port() {
    let (mut driver, host) = start();
    drop(host);
    let room = driver.buffer(&[0; 64]);
    driver.add(CONTROL_RECEIVE, &[(room, 64, WRITE)]);
    let bytes = driver.buffer(&[0; 8]);
    driver.add(RECEIVE, &[(bytes, 8, WRITE)]);
    driver.run(RECEIVE);
    assert_eq!(driver.read(room, 8), message(6, 0));
    assert!(driver.used(RECEIVE).is_empty());
    // The guest's output is dropped, so that it can continue.
    let said = driver.buffer(b"anyone?");
    driver.add(TRANSMIT, &[(said, 7, READ)]);
    driver.run(TRANSMIT);
    assert_eq!(driver.used(TRANSMIT).len(), 1);
}
