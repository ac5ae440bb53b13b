mod guest;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use guest::{Guest, data, read, reply, rest, shutdown, with};
use micabox_ground::lock;
use rustix::net::recv;

use super::super::header::{RECEIVES, SENDS};
use super::*;
use crate::kvm::virtio::driver::{Driver, READ, WRITE};
use crate::kvm::vsock::{Inside, answer};

#[test]
fn a_client_reaches_the_guest() {
    let mut guest = Guest::new();
    assert_eq!(guest.driver.config(0, 8), 3_u64.to_le_bytes());
    let (mut client, to_host) = guest.connected();
    client.write_all(b"question").unwrap();
    let (header, question) = guest.receive_one();
    assert_eq!(
        (header.operation, &question[..]),
        (Operation::DATA, &b"question"[..])
    );
    guest.send(data(to_host, 6), b"answer");
    assert_eq!(read(&mut client, 6), b"answer");
    // Data that the client sends right behind its request is not lost.
    let mut hasty = guest.client(8);
    hasty.write_all(b"at once").unwrap();
    let (request, _) = guest.receive_one();
    guest.send(with(reply(&request), Operation::RESPONSE), b"");
    assert_eq!(guest.receive_one().1, b"at once");
}

#[test]
fn a_client_that_is_refused_or_malformed_is_closed() {
    let mut guest = Guest::new();
    let client = guest.client(9);
    let (request, _) = guest.receive_one();
    guest.send(with(reply(&request), Operation::RESET), b"");
    assert_eq!(rest(client), b"");
    for line in [
        "CONNECT\n",
        "CONNECT 1 2\n",
        "HELLO 1\n",
        "CONNECT 4294967296\n",
        &"x".repeat(40),
    ] {
        let mut client = guest.stranger();
        client.write_all(line.as_bytes()).unwrap();
        assert!(guest.receive().is_empty(), "{line}");
        // Some of the client's data was not read, so its stream ends with an error.
        let mut byte = [0];
        assert!(!matches!(client.read(&mut byte), Ok(1..)), "{line}");
    }
}

#[test]
fn the_guest_reaches_a_listening_socket() {
    let mut guest = Guest::new();
    let to_host = Header {
        source: GUEST,
        destination: HOST,
        source_port: 50_000,
        destination_port: 80,
        kind: header::STREAM,
        room: 1 << 20,
        ..Header::default()
    };
    let mut port = [0; 4];
    for listens in [false, true] {
        guest.send(with(to_host, Operation::REQUEST), b"");
        recv(&guest.owner, &mut port, rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(port, 80_u32.to_le_bytes());
        assert!(guest.receive().is_empty());
        let (mut program, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let stream = OwnedFd::from(stream);
        answer(
            &guest.owner,
            listens.then_some(std::os::fd::AsFd::as_fd(&stream)),
        )
        .unwrap();
        drop(stream);
        let (header, _) = guest.receive_one();
        let ports = (header.source_port, header.destination_port);
        assert_eq!(ports, (80, 50_000));
        if !listens {
            assert_eq!(header.operation, Operation::RESET);
            continue;
        }
        assert_eq!(header.operation, Operation::RESPONSE);
        guest.send(data(to_host, 5), b"hello");
        assert_eq!(read(&mut program, 5), b"hello");
        program.write_all(b"welcome").unwrap();
        assert_eq!(guest.receive_one().1, b"welcome");
    }
    // The program left. The guest gives up before the owner has answered, so the answer is dropped.
    guest.receive();
    let other = Header {
        source_port: 50_001,
        ..to_host
    };
    guest.send(with(other, Operation::REQUEST), b"");
    guest.send(with(other, Operation::RESET), b"");
    let (program, stream) = UnixStream::pair().unwrap();
    let stream = OwnedFd::from(stream);
    answer(&guest.owner, Some(std::os::fd::AsFd::as_fd(&stream))).unwrap();
    drop(stream);
    assert!(guest.receive().is_empty());
    assert_eq!(rest(program), b"");
}

#[test]
fn the_guest_gets_what_it_has_room_for() {
    let mut guest = Guest::new();
    let (mut client, to_host) = guest.connected();
    let little = Header {
        room: 10,
        ..with(to_host, Operation::CREDIT)
    };
    guest.send(little, b"");
    client.write_all(&[7; 25]).unwrap();
    let received = guest.receive();
    assert_eq!(received[0].1, [7; 10]);
    // The device requests credit once, however often the guest announces that it has none.
    assert_eq!(received[1].0.operation, Operation::CREDIT_REQUEST);
    assert_eq!(received.len(), 2);
    guest.send(little, b"");
    assert!(guest.receive().is_empty());
    let more = Header {
        forwarded: 10,
        ..little
    };
    guest.send(more, b"");
    assert_eq!(guest.receive()[0].1, [7; 10]);
    // A guest that has passed on more than it received has no room as far as is known.
    let liar = Header {
        forwarded: 1000,
        ..little
    };
    guest.send(liar, b"");
    let received = guest.receive();
    assert!(
        received.iter().all(|(header, _)| header.length == 0),
        "{received:?}"
    );
}

#[test]
fn a_guest_that_keeps_to_its_credit_loses_nothing() {
    let mut guest = Guest::new();
    let (mut client, to_host) = guest.connected();
    let everything: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut sent, mut got) = (0, Vec::<u8>::new());
    let mut credit = (ROOM, 0_u32);
    while got.len() < everything.len() {
        let outstanding = (sent as u32).wrapping_sub(credit.1);
        let length = (credit.0 - outstanding).min(50_000) as usize;
        let next = &everything[sent..(sent + length).min(everything.len())];
        if next.is_empty() {
            let mut some = vec![0; 100_000];
            let count = client.read(&mut some).unwrap();
            got.extend(&some[..count]);
        } else {
            guest.send(data(to_host, next.len()), next);
            sent += next.len();
        }
        for (header, _) in guest.receive() {
            assert_eq!(header.operation, Operation::CREDIT);
            credit = (header.room, header.forwarded);
        }
    }
    assert!(got == everything);
}

#[test]
fn a_guest_that_sends_more_than_it_may_is_reset() {
    let mut guest = Guest::new();
    let (client, to_host) = guest.connected();
    let full = vec![1; 64 << 10];
    let reset = (0..100).any(|_| {
        guest.send(data(to_host, full.len()), &full);
        let received = guest.receive();
        received
            .iter()
            .any(|(header, _)| header.operation == Operation::RESET)
    });
    assert!(reset, "it may send without end");
    assert!(rest(client).len() < 64 * full.len());
    // The connection is gone, the device is not.
    guest.send(data(to_host, 1), b"x");
    assert_eq!(guest.receive_one().0.operation, Operation::RESET);
    guest.connected();
}

#[test]
fn either_side_of_a_connection_may_stop_before_the_other() {
    let mut guest = Guest::new();
    let (client, to_host) = guest.connected();
    client.shutdown(Shutdown::Write).unwrap();
    let (header, _) = guest.receive_one();
    assert_eq!(
        (header.operation, header.flags),
        (Operation::SHUTDOWN, SENDS)
    );
    guest.send(data(to_host, 4), b"more");
    guest.send(shutdown(to_host, SENDS | RECEIVES), b"");
    assert_eq!(rest(client), b"more");
    assert_eq!(guest.receive_one().0.operation, Operation::RESET);

    let (mut client, to_host) = guest.connected();
    guest.send(data(to_host, 4), b"last");
    guest.send(shutdown(to_host, SENDS), b"");
    assert_eq!(rest(client.try_clone().unwrap()), b"last");
    client.write_all(b"not yet").unwrap();
    assert_eq!(guest.receive_one().1, b"not yet");
    drop(client);
    let (header, _) = guest.receive_one();
    assert_eq!(
        (header.operation, header.flags),
        (Operation::SHUTDOWN, SENDS | RECEIVES)
    );
    guest.send(with(to_host, Operation::RESET), b"");
    assert!(guest.receive().is_empty());

    // Data after the end of sending breaks the connection.
    let (_client, to_host) = guest.connected();
    guest.send(shutdown(to_host, SENDS), b"");
    guest.send(data(to_host, 1), b"x");
    assert_eq!(guest.receive_one().0.operation, Operation::RESET);
}

#[test]
fn data_sent_before_the_guest_closed_arrives() {
    let mut guest = Guest::new();
    let (client, to_host) = guest.connected();
    // More than the host's socket takes at once.
    let piece = vec![5; 30_000];
    let mut sent = 0;
    while sent < 210_000 {
        guest.send(data(to_host, piece.len()), &piece);
        sent += piece.len();
    }
    guest.send(shutdown(to_host, SENDS | RECEIVES), b"");
    assert!(
        guest
            .receive()
            .iter()
            .any(|(header, _)| header.operation == Operation::RESET)
    );
    // The same ports again, while the host still reads.
    let reader = std::thread::spawn(move || rest(client).len());
    while !reader.is_finished() {
        guest.driver.host();
        // Sleep: the interval between turns of the driver.
        std::thread::yield_now();
    }
    assert_eq!(reader.join().unwrap(), sent);
}

#[test]
fn a_closed_host_socket_is_reported_to_the_guest() {
    let mut guest = Guest::new();
    let (client, to_host) = guest.connected();
    drop(client);
    let (header, _) = guest.receive_one();
    assert_eq!(
        (header.operation, header.flags),
        (Operation::SHUTDOWN, SENDS | RECEIVES)
    );
    guest.send(data(to_host, 1), b"x");
    assert!(guest.receive().is_empty());
    // The client leaves with unread data.
    let (client, to_host) = guest.connected();
    guest.send(data(to_host, 1), b"x");
    drop(client);
    assert_eq!(guest.receive_one().0.operation, Operation::RESET);
}

#[test]
fn connections_are_limited_and_others_wait() {
    let mut guest = Guest::new();
    let mut clients: Vec<_> = (0..MOST_CONNECTIONS + 1).map(|_| guest.client(7)).collect();
    let requests = guest.receive();
    assert_eq!(requests.len(), MOST_CONNECTIONS);
    let from_guest = Header {
        source_port: 1,
        destination_port: 2,
        ..reply(&requests[0].0)
    };
    guest.send(with(from_guest, Operation::REQUEST), b"");
    assert_eq!(guest.receive_one().0.operation, Operation::RESET);
    // One client leaves, the next one connects.
    drop(clients.remove(0));
    let received = guest.receive();
    assert!(
        received
            .iter()
            .any(|(header, _)| header.operation == Operation::RESET),
        "{received:?}"
    );
    assert!(
        received
            .iter()
            .any(|(header, _)| header.operation == Operation::REQUEST),
        "{received:?}"
    );
}

#[test]
fn resets_that_wait_for_the_guest_are_limited() {
    let mut guest = Guest::new();
    let stray = Header {
        source: GUEST,
        destination: HOST,
        source_port: 1,
        destination_port: 2,
        kind: header::STREAM,
        operation: Operation::DATA,
        ..Header::default()
    };
    let mut answered = 0;
    loop {
        guest.send(stray, b"");
        match guest.driver.used(TRANSMIT).len() {
            0 => break,
            count => answered += count,
        }
        assert!(answered <= 2 * MOST_RESETS);
    }
    assert_eq!(answered, 64 + MOST_RESETS);
    // As soon as the resets are taken, the guest's packets are read again.
    guest.receive();
    guest.driver.host();
    assert!(!guest.driver.used(TRANSMIT).is_empty());
}

#[test]
fn unknown_packets_are_ignored_and_malformed_ones_reset_or_stop() {
    let mut guest = Guest::new();
    let (_client, to_host) = guest.connected();
    for header in [
        Header {
            source: 4,
            ..to_host
        },
        Header {
            destination: 1,
            ..to_host
        },
        Header {
            source_port: 99,
            operation: Operation::RESET,
            ..to_host
        },
    ] {
        guest.send(header, b"");
        assert!(guest.receive().is_empty(), "{header:?}");
    }
    let (_client, sequence) = guest.connected();
    let (_client, unknown) = guest.connected();
    let (_client, request) = guest.connected();
    for header in [
        Header {
            kind: 2,
            ..with(sequence, Operation::DATA)
        },
        with(unknown, Operation(99)),
        with(request, Operation::REQUEST),
    ] {
        guest.send(header, b"");
        assert_eq!(
            guest.receive_one().0.operation,
            Operation::RESET,
            "{header:?}"
        );
    }
    assert!(!guest.driver.is_stopped());
    // More data in the header than behind it.
    guest.send(data(to_host, 10), b"short");
    assert!(guest.driver.is_stopped());

    let mut guest = Guest::new();
    let packet = guest.packet;
    guest.driver.add(TRANSMIT, &[(packet, 43, READ)]);
    guest.driver.run(TRANSMIT);
    assert!(guest.driver.is_stopped());

    // A buffer that takes a header and nothing else.
    let mut guest = Guest::new();
    for _ in 0..64 {
        guest.client(7);
    }
    guest.driver.host();
    guest.driver.add(RECEIVE, &[(packet, 44, WRITE)]);
    guest.client(7);
    guest.driver.host();
    guest.driver.run(RECEIVE);
    assert!(guest.driver.is_stopped());
}

#[test]
fn a_reset_device_has_forgotten_everything() {
    let mut guest = Guest::new();
    let (client, _) = guest.connected();
    guest.driver.write(0x70, 0);
    assert_eq!(rest(client), b"");
}

#[test]
fn a_copys_driver_learns_that_its_connections_are_gone() {
    let mut guest = Guest::new();
    let buffer = guest.driver.buffer(&[0xff; 8]);
    let head = guest.driver.add(EVENTS, &[(buffer, 8, WRITE)]);
    guest.driver.run(EVENTS);
    assert!(guest.driver.used(EVENTS).is_empty());
    let (_client, ports) = guest.connected();

    let state = lock(&guest.driver.transport).save();
    let Inside { listener, owner } = Inside::nowhere().unwrap();
    let copy = Vsock::new(listener, owner).unwrap();
    guest.driver.replace(Box::new(copy), state).unwrap();
    guest.driver.host();
    assert_eq!(guest.driver.used(EVENTS), [(head, 4)]);
    assert_eq!(guest.driver.read(buffer, 5), [0, 0, 0, 0, 0xff]);
    // Once.
    guest.driver.add(EVENTS, &[(buffer, 8, WRITE)]);
    guest.driver.run(EVENTS);
    assert!(guest.driver.used(EVENTS).is_empty());

    // A guest that did not read the event gets it again, and no program on the host is connected.
    let call = Header {
        source_port: 50_000,
        ..ports
    };
    for packet in [
        with(ports, Operation::CREDIT),
        with(call, Operation::REQUEST),
    ] {
        guest.send(packet, b"");
        assert_eq!(guest.receive_one().0.operation, Operation::RESET);
    }
}
