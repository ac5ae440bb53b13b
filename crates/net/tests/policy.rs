//! What a guest reaches and what it doesn't, tried from inside.

mod guest;

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use guest::{Guest, outside};

/// Tries to connect to each ADDRESS:PORT, then to get an answer to a datagram, and prints how
/// that went. Only who has a peer is connected: rarely, waiting for a connection ends without
/// one and without an error.
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

const NO_ROUTE: &str = "No route to host";

/// Listens on every address, in both ways on one port: only the way there differs.
fn everywhere() -> (TcpListener, UdpSocket) {
    let listeners = (0..100).map(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    let mut pairs = listeners.filter_map(|listener| {
        let port = listener.local_addr().unwrap().port();
        // Somebody else may have that one.
        let datagrams = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).ok()?;
        Some((listener, datagrams))
    });
    pairs.next().unwrap()
}

#[test]
#[ignore = "needs root"]
fn what_is_private_to_the_host_stays_so() {
    let (server, datagrams) = everywhere();
    let port = server.local_addr().unwrap().port();
    let asked = std::thread::spawn(move || {
        let (_, sender) = datagrams.recv_from(&mut [0; 10]).unwrap();
        datagrams.send_to(b"x", sender).unwrap();
        (datagrams, sender.ip())
    });
    let guest = Guest::with_rules(&[], &[]);
    let gateway = guest.gateway();
    let denied = [
        gateway.as_str(),
        "169.254.169.254",
        "169.254.1.1",
        "0.0.0.1",
        "100.100.100.200",
        "168.63.129.16",
    ];
    // A neighbour, whom Linux asks for by ARP in vain.
    let script = "
neighbour = (sys.argv[1], int(sys.argv[2]))
print(os.strerror(code(lambda: connect(*neighbour))))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', neighbour)
";
    let text = guest.run(script, &["10.213.9.77", &port.to_string()]);
    assert_eq!(text, NO_ROUTE);
    let mut targets: Vec<String> = denied.map(|to| format!("{to}:{port}")).into();
    targets.push(format!("{}:{port}", outside()));
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let text = guest.run(TRY, &targets);
    let results: Vec<&str> = text.lines().collect();
    let (inside, open) = results.split_at(denied.len() * 2);
    for (target, result) in targets.iter().zip(inside.chunks(2)) {
        // Linux itself has no route to "this host".
        let tcp_ok = [
            NO_ROUTE,
            "Invalid argument",
            "Network is unreachable",
            "Transport endpoint is not connected",
        ];
        assert!(tcp_ok.contains(&result[0]), "{target}: {result:?}");
    }
    assert_eq!(open, ["Success", "Success"], "{results:?}");
    // The last was the first and only one to arrive.
    let (datagrams, first) = asked.join().unwrap();
    assert_eq!(first, outside());
    datagrams.set_nonblocking(true).unwrap();
    let another = datagrams.recv_from(&mut [0; 10]).unwrap_err();
    assert_eq!(another.kind(), std::io::ErrorKind::WouldBlock);
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
    assert_eq!(results, ["Success", NO_ROUTE, NO_ROUTE]);
}

#[test]
#[ignore = "needs root"]
fn a_deny_rule_closes_one_thing() {
    let [server, other] = [(); 2].map(|()| TcpListener::bind((outside(), 0)).unwrap());
    let [port, denied] = [&server, &other].map(|server| server.local_addr().unwrap().port());
    let outside = outside();
    let guest = Guest::with_rules(&[], &[&format!("{outside}/31:{denied}")]);
    let targets = [format!("{outside}:{port}"), format!("{outside}:{denied}")];
    let text = guest.run(TRY, &targets.each_ref().map(String::as_str));
    let results: Vec<&str> = text.lines().collect();
    assert_eq!(results[0], "Success");
    assert_eq!(results[2..], [NO_ROUTE, NO_ROUTE]);
}
