//! Sandboxes that end by themselves: unused for a time, or at an age.

use std::time::{Duration, Instant};

use micabox_owner::Client;
use micabox_owner::protocol::{Exec, Place, Reply, Request};
use micabox_wire::{ExitStatus, ToGuest, ToHost};

use crate::support::{Fixture, detached, framed, reply, start};

const TERM: i32 = 15;

/// Lets the sandbox continue without its creator, and sets when it ends.
fn expiring(fixture: &mut Fixture, idle_timeout: Option<u64>, max_life: Option<u64>) -> Client {
    fixture.creator.request(1, &Request::Detach, &[]).unwrap();
    assert_eq!(reply(&mut fixture.creator, 1), Reply::Detached);
    fixture.creator.hang_up();
    let request = Request::Expire {
        idle_timeout,
        max_life,
    };
    let mut client = fixture.connect();
    client.request(1, &request, &[]).unwrap();
    let expected = Reply::Expires {
        idle_timeout: idle_timeout.unwrap_or(0),
        max_life: max_life.unwrap_or(0),
        left: None,
    };
    let mut said = reply(&mut client, 1);
    if let Reply::Expires { left, .. } = &mut said {
        assert_eq!(left.is_some(), max_life.is_some());
        *left = None;
    }
    assert_eq!(said, expected);
    client
}

#[test]
fn an_unused_sandbox_ends_by_itself() {
    let mut fixture = Fixture::booted();
    let mut client = expiring(&mut fixture, Some(300), None);
    let (used, begun) = (Duration::from_millis(600), Instant::now());
    // Sleep: the sandbox is used for longer than it may be idle.
    std::thread::sleep(used);
    // Its client can start a command, which is not the first one and continues without it.
    let exec = Exec {
        stdin: Place::Null,
        stdout: Place::Null,
        stderr: Place::Null,
        detach: true,
        ..framed()
    };
    let id = start(&mut client, &mut fixture.guest, exec, 0);
    let signal = Request::SignalFirst { signal: TERM };
    client.request(2, &signal, &[]).unwrap();
    assert!(matches!(reply(&mut client, 2), Reply::Failed(_)));
    drop(client);
    // Sleep: the sandbox is used for longer than it may be idle.
    std::thread::sleep(used);
    let status = ExitStatus::Exited(0);
    fixture.guest.send(ToHost::Exited { id, status });
    while fixture.guest.receive() != ToGuest::Shutdown {}
    // 300 ms, less what the clocks of a virtual machine's processors may differ by.
    assert!(begun.elapsed() >= 2 * used + Duration::from_millis(200));
}

#[test]
fn a_sandbox_ends_at_its_age_whatever_runs() {
    let mut fixture = Fixture::booted();
    // It runs before there is an age that may have passed.
    let id = detached(&mut fixture, 0);
    let client = expiring(&mut fixture, None, Some(500));
    assert_eq!(
        fixture.guest.receive(),
        ToGuest::Signal { id, signal: TERM }
    );
    drop(client);
}

#[test]
fn a_sandbox_is_given_so_long_from_now() {
    const HOUR: u64 = 3_600_000;
    let mut fixture = Fixture::booted();
    let mut client = expiring(&mut fixture, None, None);
    client
        .request(2, &Request::EndIn { millis: HOUR }, &[])
        .unwrap();
    let Reply::Expires { max_life, left, .. } = reply(&mut client, 2) else {
        panic!("another reply");
    };
    // Its age comes on top.
    assert!((HOUR..2 * HOUR).contains(&max_life), "{max_life}");
    assert!(
        left.is_some_and(|left| left <= HOUR && left > HOUR / 2),
        "{left:?}"
    );
    client
        .request(3, &Request::EndIn { millis: 0 }, &[])
        .unwrap();
    assert!(matches!(
        reply(&mut client, 3),
        Reply::Expires { left: Some(0), .. }
    ));
    while fixture.guest.receive() != ToGuest::Shutdown {}
}
