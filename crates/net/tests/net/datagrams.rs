//! Datagrams, echo requests and names, with the machine's kernel on both sides.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use micabox_net::Config;
use micabox_testing::network::{NEIGHBOUR, OWN, World, outside, resolver};
use micabox_testing::{PATIENCE, wait_until};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

use crate::guest::Guest;
use crate::link::{ACK, Link, Reply, SYN, datagram, segment};

/// Answers every datagram with its data and the sender's address.
fn serve() -> SocketAddr {
    let socket = UdpSocket::bind((outside(), 0)).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    address
}

#[test]
#[ignore = "needs root"]
fn datagrams_of_every_size_come_back() {
    let server = serve();
    let text = Guest::free().run(
        "
server = (sys.argv[1], int(sys.argv[2]))
stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for length in [0, 1, 1472, 1473, 9000, 65492]:
    data = os.urandom(length)
    stream.sendto(data, server)
    received, sender = stream.recvfrom(1 << 17)
    assert received == data and sender == server, length
for n in range(200): # more conversations than are kept at a time
    stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stream.sendto(str(n).encode(), server)
    assert stream.recv(100) == str(n).encode()
stream.connect((server[0], 9))
stream.send(b'nobody')
print(os.strerror(code(lambda: stream.recv(1))))
",
        &[&server.ip().to_string(), &server.port().to_string()],
    );
    assert_eq!(text, "Connection refused");
}

#[test]
#[ignore = "needs root"]
fn echo_requests_are_answered() {
    // The second is answered by this machine through a ping socket, if it allows one.
    let groups = std::fs::read_to_string("/proc/sys/net/ipv4/ping_group_range").unwrap();
    let pings = groups.split_whitespace().next() == Some("0");
    let guest = Guest::free();
    let mut targets = vec![guest.gateway()];
    if pings {
        targets.push(outside().to_string());
    }
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let text = guest.run(
        "
def checksum(data):
    total = sum(struct.unpack(f'!{len(data) // 2}H', data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff
stream = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
for number, target in enumerate(sys.argv[1:]):
    body = struct.pack('!HH', 0xabcd, number) + b'x' * 56
    header = struct.pack('!BBH', 8, 0, checksum(b'\\x08\\0\\0\\0' + body))
    stream.sendto(header + body, (target, 0))
    reply, sender = stream.recvfrom(1000)
    assert sender[0] == target and reply[20:22] == b'\\0\\0' and reply[24:] == body, reply
print('answered')
",
        &targets,
    );
    assert_eq!(text, "answered");
}

#[test]
#[ignore = "needs root"]
fn a_published_port_takes_datagrams() {
    // Not a port that the kernel hands out: another test could be given it.
    let mut guests = (20_000..).map(|port: u16| {
        let guest = Guest::attempt(Config {
            publish: vec![format!("{port}:5353/udp").parse().unwrap()],
            ..Config::default()
        });
        (guest, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    });
    let (guest, host) = guests
        .find_map(|(guest, host)| Some((guest.ok()?, host)))
        .unwrap();
    let mut child = guest.serve(
        "
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('', 5353))
print('listens', flush=True)
data = b''
while data != b'end':
    data, sender = server.recvfrom(1 << 17)
    server.sendto(data + b' for ' + str(sender[1]).encode(), sender)
",
    );
    let (mut seen, mut clients) = (Vec::new(), Vec::new());
    for n in 0..50 {
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        client.connect(host).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 100];
        client.send(format!("{n}").as_bytes()).unwrap();
        let length = client.recv(&mut buffer).unwrap();
        let reply = String::from_utf8(buffer[..length].to_vec()).unwrap();
        let (data, shown) = reply.split_once(" for ").unwrap();
        assert_eq!(data, n.to_string());
        seen.push(shown.to_owned());
        // Kept open: another client would be given its port.
        clients.push(client);
    }
    // The guest sees every client under another address.
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 50);
    // A kill would leave the server behind, which is a grandchild.
    clients[0].send(b"end").unwrap();
    assert!(child.wait().unwrap().success());
}

/// The guest's resolver.
const RESOLVER: ([u8; 4], u16) = ([10, 213, 9, 1], 53);

/// A query for the address of `name`, a single label.
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0, name.len() as u8]);
    bytes.extend(name.as_bytes());
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// A resolver that answers each query, which has nothing behind its question, with what `answer` makes
/// of it.
fn server(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
    server_on(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), answer)
}

fn server_on(socket: UdpSocket, answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&answer(&buffer[..length]), from);
        }
    });
    address
}

/// A socket whose port refuses datagrams: it takes those of one other port only. No other socket
/// gets that port.
fn refusing() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect((Ipv4Addr::LOCALHOST, 9)).unwrap();
    socket
}

/// One port for TCP, on which nothing listens yet, and for UDP.
fn both() -> (OwnedFd, UdpSocket) {
    let mut pairs = (0..100).filter_map(|_| {
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&stream, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = SocketAddrV4::try_from(getsockname(&stream).unwrap()).unwrap();
        // Another process may have that port.
        Some((stream, UdpSocket::bind(address).ok()?))
    });
    pairs.next().unwrap()
}

/// A response with the question, these flags and one address.
fn address(query: &[u8], flags: [u8; 2]) -> Vec<u8> {
    let mut reply = query.to_vec();
    reply[2..4].copy_from_slice(&flags);
    reply[7] = 1;
    reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 51, 100, 7]);
    reply
}

/// Asks the resolvers for a name; returns the response.
fn ask(resolvers: &[SocketAddr]) -> Vec<u8> {
    let link = Link::with(Config {
        resolvers: resolvers.to_vec(),
        ..Config::default()
    });
    link.send(&datagram(4000, RESOLVER, &query(0xbeef, "name")));
    match link.reply() {
        Reply::Datagram(4000, response) => response,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_resolver_that_fails_is_followed_by_the_next() {
    let closed = refusing();
    let fails = |code: u8| server(move |query| address(query, [0x81, 0x80 | code]));
    let failing = [
        ("closed port", closed.local_addr().unwrap()),
        ("FORMERR", fails(1)),
        ("SERVFAIL", fails(2)),
        ("NOTIMP", fails(4)),
        ("REFUSED", fails(5)),
        (
            "REFUSED without the question",
            server(|query| [&query[..2], &[0x81, 0x85, 0, 0, 0, 0, 0, 0, 0, 0]].concat()),
        ),
        (
            "cut",
            server(|query| {
                let reply = address(query, [0x81, 0x80]);
                reply[..reply.len() - 1].to_vec()
            }),
        ),
        ("no header", server(|query| query[..3].to_vec())),
        (
            "lame",
            server(|query| [&query[..2], &[0x81, 0], &query[4..]].concat()),
        ),
    ];
    let good = server(|query| address(query, [0x81, 0x80]));
    let wanted = address(&query(0xbeef, "name"), [0x81, 0x80]);
    for (how, first) in failing {
        assert_eq!(ask(&[first, good]), wanted, "{how}");
    }
    let all: Vec<_> = failing.iter().map(|(_, first)| *first).collect();
    assert_eq!(ask(&[&all[..], &[good]].concat()), wanted);
}

/// Asks until the answer came before the next resolver is asked beside one that is silent.
fn ask_in_turn(resolvers: &[SocketAddr]) -> Vec<u8> {
    let mut answer = Vec::new();
    wait_until("an answer comes in time", || {
        let start = Instant::now();
        answer = ask(resolvers);
        start.elapsed() < Duration::from_secs(2)
    });
    answer
}

#[test]
fn a_guest_gets_the_last_failure_when_all_resolvers_fail() {
    let fails = |code: u8| server(move |query| address(query, [0x81, 0x80 | code]));
    assert_eq!(ask_in_turn(&[fails(2), fails(5)])[3], 0x85);
    assert_eq!(ask_in_turn(&[fails(5), fails(2)])[3], 0x82);
    // One that can't be passed on as it came.
    let short = server(|query| [&query[..2], &[0x81, 0x84, 0, 0, 0, 0, 0, 0, 0, 0]].concat());
    let asked = query(0xbeef, "name");
    let refusal = [&asked[..2], &[0x81, 0x84], &asked[4..]].concat();
    assert_eq!(ask_in_turn(&[fails(2), short]), refusal);
    // No such name is an answer.
    let good = server(|query| address(query, [0x81, 0x80]));
    assert_eq!(ask_in_turn(&[fails(3), good])[3], 0x83);
}

#[test]
fn the_rest_of_a_long_answer_is_asked_of_the_resolver_that_has_it() {
    // Three resolvers: one takes no connections, one fails, one has a long answer.
    let start = |flags: [u8; 2]| {
        let (stream, datagrams) = both();
        let at = server_on(datagrams, move |query| address(query, flags));
        (stream, at)
    };
    let (_closed, first) = start([0x81, 0x82]);
    let (failing, second) = start([0x81, 0x82]);
    let (long, third) = start([0x83, 0x80]);
    let [failing, long] = [failing, long].map(|stream| {
        listen(&stream, 1).unwrap();
        TcpListener::from(stream)
    });
    let link = Link::with(Config {
        resolvers: vec![first, second, third],
        ..Config::default()
    });
    let connect = |port: u16, listener: &TcpListener| {
        link.send(&segment(port, RESOLVER, [500, 0], SYN, b""));
        assert_eq!(link.segment_for(port).1, SYN | ACK);
        listener.accept().unwrap();
    };
    connect(1000, &failing);
    link.send(&datagram(4000, RESOLVER, &query(7, "name")));
    let Reply::Datagram(4000, response) = link.reply() else {
        panic!("no response");
    };
    assert_eq!(response[2..4], [0x83, 0x80]);
    connect(1001, &long);
}

#[test]
fn a_thousand_questions_at_once_are_answered_and_one_beyond_is_refused() {
    const MOST: u16 = 1024;
    let resolver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let link = Link::with(Config {
        resolvers: vec![resolver.local_addr().unwrap()],
        descriptors: Some(16384),
        ..Config::default()
    });
    let asking = |n: u16| datagram(2000 + n, RESOLVER, &query(n, "name"));
    let mut asked = Vec::new();
    let mut buffer = [0; 512];
    for n in 0..MOST {
        link.send(&asking(n));
        let (length, from) = resolver.recv_from(&mut buffer).unwrap();
        asked.push((buffer[..length].to_vec(), from));
    }
    link.send(&asking(MOST));
    let Reply::Datagram(port, refused) = link.reply() else {
        panic!("no response");
    };
    assert_eq!((port, refused[3]), (2000 + MOST, 0x82));
    // The guest repeats a question; the answer comes once.
    link.send(&asking(0));
    for (query, from) in asked {
        resolver
            .send_to(&address(&query, [0x81, 0x80]), from)
            .unwrap();
    }
    let answered = (0..MOST).map(|_| match link.reply() {
        Reply::Datagram(port, response) => {
            assert_eq!(response[..2], (port - 2000).to_be_bytes());
            port
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(answered.collect::<BTreeSet<_>>().len(), usize::from(MOST));
    // There is room again.
    link.send(&asking(MOST));
    resolver.recv_from(&mut buffer).unwrap();
}

#[test]
fn a_conversation_without_a_place_is_refused_until_another_was_answered() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = ([127, 0, 0, 1], server.local_addr().unwrap().port());
    let link = Link::with(Config {
        allow: vec!["127.0.0.0/8".parse().unwrap()],
        descriptors: Some(2000),
        ..Config::default()
    });
    let mut callers = Vec::new();
    for port in 1000..1500 {
        link.send(&datagram(port, to, &port.to_be_bytes()));
        callers.push(server.recv_from(&mut [0; 2]).unwrap().1);
    }
    // Administratively prohibited: the code of which Linux tells a program.
    link.send(&datagram(1500, to, b"one too many"));
    assert_eq!(link.reply(), Reply::Unreachable(1500, 13));
    for (port, caller) in (1000_u16..).zip(&callers) {
        server.send_to(b"answer", caller).unwrap();
        assert_eq!(link.reply(), Reply::Datagram(port, b"answer".to_vec()));
    }
    link.send(&datagram(1500, to, b"again"));
    let (_, caller) = server.recv_from(&mut [0; 20]).unwrap();
    server.send_to(b"answer", caller).unwrap();
    assert_eq!(link.reply(), Reply::Datagram(1500, b"answer".to_vec()));
}

const LOOKUP: &str = "
def look(name):
    try: return socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error: return error.errno
";

#[test]
#[ignore = "needs root"]
fn names_are_asked_of_the_next_resolver_if_one_is_silent() {
    let closed = refusing();
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let guest = Guest::new(Config {
        resolvers: vec![
            closed.local_addr().unwrap(),
            silent.local_addr().unwrap(),
            resolver([198, 51, 100, 7].into()),
        ],
        ..Config::default()
    });
    let text = guest.run(
        &format!("{LOOKUP}\nprint(look('www.test'), look('www.example') == socket.EAI_NONAME)"),
        &[],
    );
    assert_eq!(text, "198.51.100.7 True");
}

#[test]
#[ignore = "needs root"]
fn a_rule_for_a_name_opens_the_address_behind_it() {
    let Some(world) = World::enter() else {
        return;
    };
    let server = world.there(|| TcpListener::bind((NEIGHBOUR, 0)).unwrap());
    let port = server.local_addr().unwrap().port();
    let guest = Guest::new(Config {
        allow: vec![format!("*.test:{port}").parse().unwrap()],
        deny: vec!["bad.test".parse().unwrap()],
        resolvers: vec![resolver(NEIGHBOUR)],
        ..Config::default()
    });
    let text = guest.run(
        &format!(
            "{LOOKUP}
address, port = sys.argv[1:]
print(os.strerror(code(lambda: connect(address, port))))
print(look('www.example') == socket.EAI_AGAIN or look('www.example'))
print(look('bad.test') == socket.EAI_AGAIN or look('bad.test'))
print(look('www.test'))
print(code(lambda: connect('www.test', port)))
print(os.strerror(code(lambda: connect(address, 9))))
"
        ),
        &[&NEIGHBOUR.to_string(), &port.to_string()],
    );
    let refused = "Connection refused";
    assert_eq!(
        text,
        format!("{refused}\nTrue\nTrue\n{NEIGHBOUR}\n0\n{refused}")
    );
}

#[test]
#[ignore = "needs root"]
fn a_name_opens_no_address_of_this_machine_or_its_networks() {
    let Some(world) = World::enter() else {
        return;
    };
    let neighbour = Ipv4Addr::new(10, 77, 0, 2);
    world.have(neighbour);
    let any = (Ipv4Addr::UNSPECIFIED, 7003);
    let _here = TcpListener::bind(any).unwrap();
    let _there = world.there(|| TcpListener::bind(any).unwrap());
    let reached = |address: Ipv4Addr, rules: &[&str]| {
        let guest = Guest::new(Config {
            allow: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
            resolvers: vec![resolver(address)],
            ..Config::default()
        });
        let script = format!(
            "{LOOKUP}\nprint(look('www.test'), code(lambda: connect('www.test', 7003)) == 0)"
        );
        guest.run(&script, &[])
    };
    for address in [neighbour, OWN, Ipv4Addr::LOCALHOST] {
        assert_eq!(reached(address, &["*.test"]), format!("{address} False"));
    }
    // Unless a rule allows the neighbour's network or this very address.
    for (address, rule) in [(neighbour, "10.0.0.0/8"), (OWN, "198.18.0.1:7003")] {
        assert_eq!(
            reached(address, &["*.test", rule]),
            format!("{address} True")
        );
    }
}
