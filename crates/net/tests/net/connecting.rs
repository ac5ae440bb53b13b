//! Connections that are being made: how long attempts last, and how many there can be.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use micabox_net::Config;
use micabox_testing::network::{NEIGHBOUR, World};
use micabox_testing::wait_until;

use crate::guest::Guest;
use crate::link::{ACK, FIN, Link, RST, SYN, segment};

/// A documentation network (RFC 5737); here, packets to it are lost.
const HOLE: &str = "203.0.113.0/24";
const IN_HOLE: [u8; 4] = [203, 0, 113, 7];

/// How long the network keeps an attempt whose request the guest does not repeat.
const LASTS: Duration = Duration::from_secs(4);

/// For how long this machine asks for an address by ARP, less a second.
const ASKS: Duration = Duration::from_secs(2);

/// Counts the connections that this machine is trying to make, in its kernel's own table.
fn attempts() -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let states = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().nth(3));
    states.filter(|state| *state == Some("02")).count() // SYN_SENT
}

fn wait_for_attempts(expected: usize) {
    wait_until("the number of attempts", || attempts() == expected);
}

/// Counts the sockets of this machine that a process has open: the kernel closes others in its own
/// time.
fn open() -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let inodes = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().nth(9));
    inodes.filter(|inode| *inode != Some("0")).count()
}

/// Serves a port that echoes a byte on each connection, and holds all of them; returns the port.
fn serve(world: &World) -> String {
    let server = world.there(|| TcpListener::bind((NEIGHBOUR, 0)).unwrap());
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut streams = Vec::new();
        for mut stream in server.incoming().flatten() {
            let served = stream.try_clone().map(|mut served| {
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() {
                        let _ = served.write_all(&byte);
                    }
                })
            });
            streams.push(served);
        }
    });
    port.to_string()
}

/// Starts that many connections at once and waits for the end of each attempt; then prints the
/// result of each, and of a byte there and back on each connection made.
const AT_ONCE: &str = "
import errno, select
def at_once(count, *to):
    streams = [socket.socket() for n in range(count)]
    for stream in streams:
        stream.setblocking(False)
        stream.connect_ex(to)
    results = {}
    made = []
    for stream in streams:
        poller = select.poll()
        poller.register(stream, select.POLLOUT)
        assert poller.poll(1000 * PATIENCE)
        error = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        results[error] = results.get(error, 0) + 1
        if error == 0: made.append(stream)
    for stream in made:
        stream.setblocking(True)
        stream.sendall(b'x')
    for stream in made:
        assert stream.recv(1) == b'x'
    for stream in streams: stream.close()
    return ', '.join(f'{count} {os.strerror(error)}' for error, count in sorted(results.items()))
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
";

#[test]
#[ignore = "needs root"]
fn an_attempt_that_the_guest_has_given_up_is_closed() {
    let Some(world) = World::enter() else {
        return;
    };
    world.swallow(HOLE);
    let port = serve(&world);
    let guest = Guest::with_rules(&[], &[]);
    // A client with its own timeout; its kernel sends nothing when the client closes the socket.
    // A busy machine may delay some of the connections afterwards, but not all.
    let text = guest.run(
        "
def is_fast():
    for turn in range(6):
        streams = [socket.socket() for n in range(250)]
        for n, stream in enumerate(streams):
            stream.setblocking(False)
            stream.connect_ex((f'203.0.113.{n}', 1000 + turn))
        # Sleep: the client's own timeout passes.
        time.sleep(0.3)
        for stream in streams: stream.close()
    start = time.monotonic()
    connect(*sys.argv[1:]).close()
    return time.monotonic() - start < 2
print(any(is_fast() for n in range(20)))
",
        &[&NEIGHBOUR.to_string(), &port],
    );
    assert_eq!(text, "True");
    wait_for_attempts(0);
}

#[test]
#[ignore = "needs root"]
fn an_attempt_lasts_while_the_guest_retransmits() {
    let Some(world) = World::enter() else {
        return;
    };
    world.swallow(HOLE);
    let guest = Guest::with_rules(&[], &[]);
    let mut child = guest.start(
        "
stream = socket.socket()
stream.settimeout(12)
print(code(lambda: stream.connect(('203.0.113.7', 80))))
",
        &[],
    );
    wait_for_attempts(1);
    // The same attempt until the guest gives it up: a new one would come from another port.
    let table = || {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let row = table.lines().nth(1).map(str::to_owned);
        row.map(|row| row.split_whitespace().nth(1).unwrap().to_owned())
    };
    let first = table();
    while child.try_wait().unwrap().is_none() {
        let now = table();
        assert!(
            now == first || child.try_wait().unwrap().is_some(),
            "{now:?}"
        );
        // Sleep: the interval between looks, while nothing may change.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(child.wait().unwrap().success());
    wait_for_attempts(0);
}

#[test]
#[ignore = "needs root"]
fn a_reset_or_fin_ends_an_attempt() {
    let Some(world) = World::enter() else {
        return;
    };
    world.swallow(HOLE);
    let link = Link::new("203.0.113.0/24");
    let mut ports = 1000..;
    for flags in [RST, RST | ACK, FIN | ACK] {
        // Again if it took so long that the attempt may have ended by itself.
        wait_until("what follows comes in time", || {
            let port = ports.next().unwrap();
            let start = Instant::now();
            let [before, after] = [(500, SYN), (501, flags)].map(|(number, flags)| {
                link.send(&segment(port, (IN_HOLE, 80), [number, 0], flags, b""));
                // The answer comes after what was sent before the question has been handled.
                link.is_alive();
                attempts()
            });
            let in_time = start.elapsed() < LASTS;
            assert!(!in_time || (before, after) == (1, 0), "{before} {after}");
            in_time
        });
    }
}

#[test]
#[ignore = "needs root"]
fn a_new_syn_of_a_port_replaces_its_attempt() {
    let Some(world) = World::enter() else {
        return;
    };
    let link = Link::new("198.18.0.0/24");
    let any = std::net::Ipv4Addr::UNSPECIFIED;
    let _server = world.there(|| TcpListener::bind((any, 80)).unwrap());
    let mut numbers = 77..;
    // Again if it took so long that the attempt may have ended by itself.
    wait_until("what follows comes in time", || {
        let number = numbers.next().unwrap();
        let (address, port) = ([198, 18, 0, number], 1000 + u16::from(number));
        let start = Instant::now();
        let [first, second] =
            [500, 900].map(|number| segment(port, (address, 80), [number, 0], SYN, b""));
        // No host has the address yet, so this machine asks for it by ARP.
        link.send(&first);
        link.is_alive();
        let before = attempts();
        link.send(&second);
        // It is handled before this machine has the address.
        link.is_alive();
        world.have(address.into());
        let (_, flags, acknowledged) = link.segment_for_repeated(&second, port);
        let in_time = start.elapsed() < ASKS;
        let found = (before, flags, acknowledged);
        assert!(!in_time || found == (1, SYN | ACK, 901), "{found:?}");
        // The next one is alone.
        wait_for_attempts(0);
        in_time
    });
}

/// A guest that can have 1024 connections at a time.
fn with_a_thousand_places() -> Guest {
    Guest::new(Config {
        descriptors: Some(2048),
        ..Config::default()
    })
}

#[test]
#[ignore = "needs root"]
fn seven_hundred_connections_at_once_are_all_made() {
    let Some(world) = World::enter() else {
        return;
    };
    world.swallow(HOLE);
    let port = serve(&world);
    let guest = with_a_thousand_places();
    // The same holds while the maximum number of attempts is under way in vain, once the network has
    // seen the first ones closed: they count until then. A connection more says when.
    let gate = world.there(|| TcpListener::bind((NEIGHBOUR, 0)).unwrap());
    let child = guest.start(
        &format!(
            "{AT_ONCE}
print(at_once(700, sys.argv[1], int(sys.argv[2])))
gate = connect(sys.argv[1], sys.argv[3])
assert gate.recv(1) == b'x'
streams = [socket.socket() for n in range(1500)]
for n, stream in enumerate(streams):
    stream.setblocking(False)
    stream.connect_ex((f'203.0.113.{{n % 250}}', 1000 + n))
print(at_once(700, sys.argv[1], int(sys.argv[2])))
"
        ),
        &[
            &NEIGHBOUR.to_string(),
            &port,
            &gate.local_addr().unwrap().port().to_string(),
        ],
    );
    let (mut gate, _) = gate.accept().unwrap();
    wait_until("only the gate is open", || open() == 1);
    gate.write_all(b"x").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "700 Success\n700 Success\n");
}

#[test]
#[ignore = "needs root"]
fn connections_beyond_the_limit_are_refused() {
    let Some(world) = World::enter() else {
        return;
    };
    let port = serve(&world);
    let guest = with_a_thousand_places();
    let text = guest.run(
        &format!("{AT_ONCE}\nprint(at_once(1100, sys.argv[1], int(sys.argv[2])))"),
        &[&NEIGHBOUR.to_string(), &port],
    );
    assert_eq!(text, "1024 Success, 76 Connection refused");
}
