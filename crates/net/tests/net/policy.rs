//! What a guest can reach and what it can't, tried from inside.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use micabox_testing::network::{NEIGHBOUR, World, counter, ip, outside};
use micabox_testing::wait_until;

use crate::guest::Guest;

/// Tries to connect to each ADDRESS:PORT, then to get an answer to a datagram, and prints the
/// results.
const TRY: &str = "
for target in sys.argv[1:]:
    address, port = target.split(':')
    print(os.strerror(code(lambda: connect(address, port).getpeername())))
    stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    def ask():
        stream.connect((address, int(port)))
        stream.send(b'x')
        stream.recv(1)
    print(os.strerror(code(ask)))
";

const REFUSED: &str = "Connection refused";
const NO_ROUTE: &str = "No route to host";

/// Listens on every address, for TCP and UDP on one port: only the route to it differs.
fn everywhere() -> (TcpListener, UdpSocket) {
    let listeners = (0..100).map(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    let mut pairs = listeners.filter_map(|listener| {
        let port = listener.local_addr().unwrap().port();
        // Another process may have that port.
        let datagrams = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).ok()?;
        Some((listener, datagrams))
    });
    pairs.next().unwrap()
}

/// What the guest's and the host's kernel report for an address that is denied, and for one that is
/// open.
const DENIED: [&str; 2] = [REFUSED, NO_ROUTE];
const OPEN: [&str; 2] = ["Success", "Success"];

/// A neighbour that listens on these addresses, for TCP and UDP on one port; counts what it
/// receives.
fn neighbour(world: &World, addresses: &[&str], port: u16) -> Arc<AtomicUsize> {
    let came = Arc::new(AtomicUsize::new(0));
    for address in addresses {
        let address: Ipv4Addr = address.parse().unwrap();
        if address != NEIGHBOUR {
            world.have(address);
        }
        let server = world.there(|| TcpListener::bind((address, port)).unwrap());
        let datagrams = world.there(|| UdpSocket::bind((address, port)).unwrap());
        let (streams, packets) = (Arc::clone(&came), Arc::clone(&came));
        std::thread::spawn(move || {
            for stream in server.incoming() {
                drop(stream);
                streams.fetch_add(1, Ordering::Relaxed);
            }
        });
        std::thread::spawn(move || {
            while let Ok((_, sender)) = datagrams.recv_from(&mut [0; 10]) {
                packets.fetch_add(1, Ordering::Relaxed);
                let _ = datagrams.send_to(b"x", sender);
            }
        });
    }
    came
}

/// Tries all of these from inside, and returns the result of each.
fn attempt(guest: &Guest, addresses: &[&str], port: u16) -> Vec<[String; 2]> {
    let targets: Vec<String> = addresses.iter().map(|to| format!("{to}:{port}")).collect();
    let text = guest.run(TRY, &targets.iter().map(String::as_str).collect::<Vec<_>>());
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2 * addresses.len(), "{text}");
    lines
        .chunks(2)
        .map(|pair| [0, 1].map(|n| pair[n].clone()))
        .collect()
}

#[test]
#[ignore = "needs root"]
fn the_hosts_private_addresses_are_closed() {
    let Some(world) = World::enter() else {
        return;
    };
    let (server, datagrams) = everywhere();
    let port = server.local_addr().unwrap().port();
    let private = [
        "169.254.169.254",
        "169.254.1.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
    ];
    let neighbours = ["198.18.0.2", "10.77.0.2", "192.168.77.2", "172.20.0.2"];
    // All of them exist, one hop away.
    let came = neighbour(&world, &[&private[..], &neighbours].concat(), port);
    let guest = Guest::with_rules(&[], &[]);
    // One that the host has from the start, and those that it gets later: on an interface, and by a
    // route to addresses that no interface has.
    ip("addr add 198.51.100.9/32 dev lo");
    ip("route add local 203.0.113.0/24 dev lo");
    let gateway = guest.gateway();
    let own = [
        gateway.as_str(),
        "198.18.0.1",
        "198.51.100.9",
        "203.0.113.7",
    ];
    let before = [
        counter("Tcp", "ActiveOpens"),
        counter("Udp", "OutDatagrams"),
    ];

    for address in attempt(&guest, &[&private[..], &own].concat(), port) {
        assert_eq!(address, DENIED);
    }
    // Linux itself has no way to "this host".
    let [this_host, _] = &attempt(&guest, &["0.0.0.1"], port)[0];
    let no_way = ["Invalid argument", "Network is unreachable", REFUSED];
    assert!(no_way.contains(&this_host.as_str()), "{this_host}");
    // The guest's own network has no other host: Linux asks for one by ARP in vain.
    let script = "
neighbour = (sys.argv[1], int(sys.argv[2]))
print(os.strerror(code(lambda: connect(*neighbour))))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', neighbour)
";
    let text = guest.run(script, &["10.213.9.77", &port.to_string()]);
    assert_eq!(text, NO_ROUTE);
    // Nothing left this machine, and nothing was attempted on it.
    let after = [
        counter("Tcp", "ActiveOpens"),
        counter("Udp", "OutDatagrams"),
    ];
    assert_eq!(after, before);
    assert_eq!(came.load(Ordering::Relaxed), 0);
    server.set_nonblocking(true).unwrap();
    datagrams.set_nonblocking(true).unwrap();
    assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let received = datagrams.recv_from(&mut [0; 10]);
    assert_eq!(received.unwrap_err().kind(), ErrorKind::WouldBlock);

    for address in attempt(&guest, &neighbours, port) {
        assert_eq!(address, OPEN);
    }
    let after = [
        counter("Tcp", "ActiveOpens"),
        counter("Udp", "OutDatagrams"),
    ];
    assert!(
        after[0] - before[0] == 4 && after[1] > before[1],
        "{after:?}"
    );
    // A connection is made before the neighbour's server sees it.
    wait_until("all have come", || came.load(Ordering::Relaxed) >= 8);
    assert_eq!(came.load(Ordering::Relaxed), 8);
}

#[test]
#[ignore = "needs root"]
fn a_denied_connection_is_refused_every_time_and_opens_no_socket() {
    let Some(world) = World::enter() else {
        return;
    };
    let came = neighbour(&world, &["169.254.169.254", "198.18.0.2"], 80);
    let guest = Guest::with_rules(&["198.18.0.2"], &[]);
    let before = counter("Tcp", "ActiveOpens");
    // As programs with an event loop do: the socket is reported once the error is there.
    let script = "
import errno, select
results = {}
for turn in range(int(sys.argv[2])):
    streams = []
    for n in range(100):
        stream = socket.socket()
        stream.setblocking(False)
        assert stream.connect_ex((sys.argv[1], 80)) in (errno.EINPROGRESS, errno.ECONNREFUSED)
        streams.append(stream)
    for stream in streams:
        poller = select.poll()
        poller.register(stream, select.POLLIN | select.POLLOUT)
        poller.poll()
        error = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        results[error] = results.get(error, 0) + 1
        stream.close()
print(*((os.strerror(error), count) for error, count in results.items()))
";
    let text = guest.run(script, &["169.254.169.254", "20"]);
    assert_eq!(text, format!("('{REFUSED}', 2000)"));
    assert_eq!(counter("Tcp", "ActiveOpens"), before);
    assert_eq!(came.load(Ordering::Relaxed), 0);
    // This shows that the counter works.
    let text = guest.run(script, &["198.18.0.2", "1"]);
    assert_eq!(text, "('Success', 100)");
    assert_eq!(counter("Tcp", "ActiveOpens"), before + 100);
}

#[test]
#[ignore = "needs root"]
fn a_wide_rule_does_not_open_the_host() {
    let Some(world) = World::enter() else {
        return;
    };
    let (_server, datagrams) = everywhere();
    let port = datagrams.local_addr().unwrap().port();
    let _came = neighbour(&world, &["169.254.169.254", "198.18.0.2"], port);
    let name = port.to_string();
    let tcp = |rules: &[&str]| {
        let guest = Guest::with_rules(rules, &[]);
        let gateway = guest.gateway();
        let targets = [&gateway, "198.18.0.1", "169.254.169.254", "198.18.0.2"];
        let script = "
for address in sys.argv[2:]: print(code(lambda: connect(address, sys.argv[1])) == 0)
";
        let arguments = [&[name.as_str()][..], &targets].concat();
        let text = guest.run(script, &arguments);
        text.lines().map(|line| line == "True").collect::<Vec<_>>()
    };
    for wide in ["0.0.0.0/0", &format!("0.0.0.0/0:{port}")] {
        assert_eq!(tcp(&[wide]), [false, false, false, true], "{wide}");
    }
    assert_eq!(tcp(&["198.18.0.0/24"]), [false, false, false, true]);
    let open = ["127.0.0.0/8", "198.18.0.1", "169.254.0.0/16"];
    assert_eq!(tcp(&open), [true, true, true, false]);
}

#[test]
#[ignore = "needs root"]
fn the_hosts_loopback_opens_by_a_rule_for_it() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let [port, closed] = [&server, &other].map(|server| server.local_addr().unwrap().port());
    let guest = Guest::with_rules(&[&format!("127.0.0.1:{port}")], &[]);
    let gateway = guest.gateway();
    let targets = [
        format!("{gateway}:{port}"),
        format!("{gateway}:{closed}"),
        format!("{}:{port}", outside()),
    ];
    let text = guest.run(TRY, &targets.each_ref().map(String::as_str));
    let results: Vec<&str> = text.lines().step_by(2).collect();
    assert_eq!(results, ["Success", REFUSED, REFUSED]);
}

#[test]
#[ignore = "needs root"]
fn a_deny_rule_closes_its_address_and_port_only() {
    let Some(world) = World::enter() else {
        return;
    };
    let (open, denied) = (7001, 7002);
    let _came = [open, denied].map(|port| neighbour(&world, &["198.18.0.2"], port));
    let guest = Guest::with_rules(&[], &[&format!("{NEIGHBOUR}/31:{denied}")]);
    let neighbour = NEIGHBOUR.to_string();
    assert_eq!(attempt(&guest, &[&neighbour], open), [OPEN]);
    assert_eq!(attempt(&guest, &[&neighbour], denied), [DENIED]);
}
