//! Connections, with the machine's kernel on both sides.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::Child;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use micabox_net::Config;
use micabox_spec::network::Rate;
use micabox_testing::network::outside;
use micabox_testing::{PATIENCE, wait_until};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};

use crate::guest::Guest;

/// Serves one connection after the other.
fn serve(
    connections: usize,
    serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static,
) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind((outside(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server = std::thread::spawn(move || {
        let served: Vec<JoinHandle<()>> = listener
            .incoming()
            .take(connections)
            .map(|stream| {
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream.unwrap()))
            })
            .collect();
        for thread in served {
            thread.join().unwrap();
        }
    });
    (port, server)
}

fn echo(mut stream: TcpStream) {
    let mut data = Vec::new();
    stream.read_to_end(&mut data).unwrap();
    stream.write_all(&data).unwrap();
}

fn finish(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim_end().into()
}

#[test]
#[ignore = "needs root"]
fn much_data_arrives_both_ways_at_once() {
    send_much_both_ways(&Guest::free());
}

#[test]
#[ignore = "needs root"]
fn checksums_may_be_left_to_the_guest() {
    let config = |header| Config {
        allow: vec![outside().to_string().parse().unwrap()],
        header,
        ..Config::default()
    };
    send_much_both_ways(&Guest::new(config(true)));
    // A refusal, and the guest's kernel's counters of what it received.
    let text = Guest::new(config(true)).run(
        "
print(code(lambda: connect(sys.argv[1], 9)))
print(code(lambda: connect('192.0.2.250', 9)))
",
        &[&outside().to_string()],
    );
    let refused = libc_errno("ECONNREFUSED");
    assert_eq!(text, format!("{refused}\n{refused}"));
}

fn send_much_both_ways(guest: &Guest) {
    let (port, server) = serve(1, |stream| {
        let mut writer = stream.try_clone().unwrap();
        let up = std::thread::spawn(move || {
            for n in 0..256_u32 {
                let piece: Vec<u8> = (n..n + 65536).flat_map(u32::to_le_bytes).collect();
                writer.write_all(&piece).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut reader = stream;
        for n in 0..256_u32 {
            let mut piece = vec![0; 65536 * 4];
            reader.read_exact(&mut piece).unwrap();
            let expected: Vec<u8> = (n..n + 65536).flat_map(u32::to_le_bytes).collect();
            assert!(piece == expected, "piece {n}");
        }
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        up.join().unwrap();
    });
    let text = guest.run(
        "
import array
stream = connect(*sys.argv[1:])
pieces = [array.array('I', range(n, n + 65536)).tobytes() for n in range(256)]
def send():
    for piece in pieces: stream.sendall(piece)
    stream.shutdown(socket.SHUT_WR)
thread = threading.Thread(target=send)
thread.start()
assert read_all(stream) == b''.join(pieces)
thread.join()
# None of it came with a checksum that was wrong.
tables = [line.split() for line in open('/proc/self/net/snmp') if line.startswith('Tcp:')]
errors = dict(zip(*tables))
assert errors['InErrs'] == errors['InCsumErrors'] == '0', errors
print('whole')
",
        &[&outside().to_string(), &port],
    );
    assert_eq!(text, "whole");
    server.join().unwrap();
}

/// A rate holds back what is beyond it, in its own direction only.
#[test]
#[ignore = "needs root"]
fn a_rate_limits_one_direction() {
    const SENT: u32 = 1 << 20;
    const MUCH: usize = 16 << 20;
    for (slow, up, down) in [("down", MUCH, 0), ("up", 0, MUCH)] {
        let limited = |rate| {
            let (incoming, outgoing) = match slow {
                "down" => (Some(rate), None),
                _ => (None, Some(rate)),
            };
            Guest::new(Config {
                allow: vec![outside().to_string().parse().unwrap()],
                rate: Rate { incoming, outgoing },
                ..Config::default()
            })
        };
        let (port, server) = serve(2, echo);
        let text = limited(u64::from(SENT)).run(
            "
data = bytes(int(sys.argv[3]))
def measure():
    stream = connect(*sys.argv[1:3])
    start = time.monotonic()
    stream.sendall(data)
    stream.shutdown(socket.SHUT_WR)
    assert read_all(stream) == data
    return time.monotonic() - start
whole = measure() + measure()
print(round(whole, 2))
",
            &[&outside().to_string(), &port, &SENT.to_string()],
        );
        // Twice a second's worth, of which a tenth may pass at once.
        let seconds: f64 = text.parse().unwrap();
        assert!(seconds > 1.6, "{slow}: {seconds}");
        server.join().unwrap();

        // What takes half an hour in one direction takes seconds in the other, in which only
        // acknowledgements are limited.
        let (port, server) = serve(1, move |mut stream| {
            let mut data = Vec::new();
            stream.read_to_end(&mut data).unwrap();
            assert_eq!(data.len(), up);
            stream.write_all(&vec![0; down]).unwrap();
        });
        let text = limited(10_000).run(
            "
stream = connect(*sys.argv[1:3])
stream.sendall(bytes(int(sys.argv[3])))
stream.shutdown(socket.SHUT_WR)
print(len(read_all(stream)))
",
            &[&outside().to_string(), &port, &up.to_string()],
        );
        assert_eq!(text, down.to_string(), "{slow}");
        server.join().unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn a_running_networks_rate_changes() {
    const SENT: u32 = 1 << 20;
    const SEND: &str = "
data = bytes(int(sys.argv[3]))
stream = connect(*sys.argv[1:3])
start = time.monotonic()
stream.sendall(data)
stream.shutdown(socket.SHUT_WR)
assert read_all(stream) == data
print(round(time.monotonic() - start, 2))
";
    let guest = Guest::free();
    let limit = |incoming| {
        guest.network.limit(Rate {
            incoming,
            outgoing: None,
        });
    };
    let measure = |incoming| -> f64 {
        limit(Some(incoming));
        let (port, server) = serve(1, echo);
        let text = guest.run(SEND, &[&outside().to_string(), &port, &SENT.to_string()]);
        server.join().unwrap();
        text.parse().unwrap()
    };
    let slow = measure(u64::from(SENT) / 2);
    let slower = measure(u64::from(SENT) / 4);
    assert!(slow > 1.5 && slower > 3.0, "{slow} {slower}");
    // What would take days ends once there is no limit.
    limit(Some(1));
    let (connected, is_connected) = channel();
    let (port, server) = serve(1, move |stream| {
        connected.send(()).unwrap();
        echo(stream);
    });
    let child = guest.start(SEND, &[&outside().to_string(), &port, &SENT.to_string()]);
    is_connected.recv_timeout(PATIENCE).unwrap();
    limit(None);
    finish(child);
    server.join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn each_direction_ends_by_itself() {
    // The guest ends first and gets its answer; then the host does.
    let (port, server) = serve(2, |mut stream| {
        let mut first = [0];
        stream.read_exact(&mut first).unwrap();
        if first == *b"g" {
            return echo(stream);
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let mut data = String::new();
        stream.read_to_string(&mut data).unwrap();
        assert_eq!(data, "after the end");
    });
    let text = Guest::free().run(
        "
first = connect(*sys.argv[1:])
first.sendall(b'guest first')
first.shutdown(socket.SHUT_WR)
print(read_all(first).decode())
second = connect(*sys.argv[1:])
second.sendall(b'h')
assert read_all(second) == b''
second.sendall(b'after the end')
second.close()
",
        &[&outside().to_string(), &port],
    );
    assert_eq!(text, "uest first");
    server.join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn refusals_and_resets_pass_through() {
    // Has its port and does not listen, so no other process can.
    let closed = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&closed, &SocketAddr::from((outside(), 0))).unwrap();
    let address = SocketAddrV4::try_from(getsockname(&closed).unwrap()).unwrap();
    let nobody = address.port().to_string();
    let (port, server) = serve(2, |mut stream| {
        let mut first = [0];
        stream.read_exact(&mut first).unwrap();
        if first == *b"h" {
            sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            return; // Closes with a reset.
        }
        // Resets only after its byte was read: the reset would overtake the byte.
        stream.write_all(&first).unwrap();
        let error = stream.read(&mut first).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
    let text = Guest::free().run(
        "
address, port, nobody = sys.argv[1:]
print(code(lambda: connect(address, nobody)))
stream = connect(address, port)
stream.sendall(b'h')
print(code(lambda: stream.recv(1)))
stream = connect(address, port)
stream.sendall(b'g')
stream.recv(1)
stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
stream.close()
",
        &[&outside().to_string(), &port, &nobody],
    );
    let expected = [libc_errno("ECONNREFUSED"), libc_errno("ECONNRESET")];
    assert_eq!(text, expected.join("\n"));
    server.join().unwrap();
}

fn libc_errno(name: &str) -> String {
    use rustix::io::Errno;
    let errno = match name {
        "ECONNREFUSED" => Errno::CONNREFUSED,
        "ECONNRESET" => Errno::CONNRESET,
        _ => Errno::HOSTUNREACH,
    };
    errno.raw_os_error().to_string()
}

#[test]
#[ignore = "needs root"]
fn hundreds_of_connections_at_once_and_after_each_other() {
    let (port, server) = serve(600, echo);
    let text = Guest::free().run(
        "
for round in range(2):
    streams = [connect(*sys.argv[1:]) for n in range(300)]
    for n, stream in enumerate(streams):
        stream.sendall(str(n).encode())
        stream.shutdown(socket.SHUT_WR)
    for n, stream in enumerate(streams):
        assert read_all(stream) == str(n).encode()
        stream.close()
print('all')
",
        &[&outside().to_string(), &port],
    );
    assert_eq!(text, "all");
    server.join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn acknowledged_data_arrives_after_the_machine_is_gone() {
    let (gone, is_gone) = channel();
    let is_gone = Arc::new(Mutex::new(is_gone));
    let (arrived, total) = channel();
    let (port, server) = serve(1, move |mut stream| {
        is_gone.lock().unwrap().recv().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        arrived.send(all.len()).unwrap();
    });
    let guest = Guest::free();
    let child = guest.start(
        "
import fcntl, signal, termios
stream = connect(*sys.argv[1:])
stream.settimeout(0.3)
sent = 0
try:
    while True: sent += stream.send(bytes(65536))
except TimeoutError: pass
waiting = struct.unpack('i', fcntl.ioctl(stream, termios.TIOCOUTQ, bytes(4)))[0]
print(sent - waiting, flush=True)
os.kill(os.getppid(), signal.SIGKILL) # the link's end
",
        &[&outside().to_string(), &port],
    );
    let output = child.wait_with_output().unwrap();
    let acknowledged: usize = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let stopping = std::thread::spawn(move || drop(guest));
    gone.send(()).unwrap();
    let total = total.recv().unwrap();
    assert!(total >= acknowledged, "{total} of {acknowledged}");
    stopping.join().unwrap();
    server.join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_reader_that_stops_blocks_only_its_writer() {
    let (slow_port, slow) = serve(1, |mut stream| {
        let mut one = [0];
        // Reads nothing for a while: the guest is blocked by then.
        stream.read_exact(&mut one).unwrap();
        // Sleep: a reader that stops, by which time the guest is blocked.
        std::thread::sleep(Duration::from_millis(500));
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.len(), (32 << 20) - 1);
    });
    let (port, server) = serve(1, echo);
    let text = Guest::free().run(
        "
address, slow_port, port = sys.argv[1:]
slow = connect(address, slow_port)
def send():
    slow.sendall(bytes(32 << 20))
    slow.shutdown(socket.SHUT_WR)
    read_all(slow)
thread = threading.Thread(target=send)
thread.start()
other = connect(address, port)
other.sendall(b'not stuck')
other.shutdown(socket.SHUT_WR)
print(read_all(other).decode())
thread.join()
",
        &[&outside().to_string(), &slow_port, &port],
    );
    assert_eq!(text, "not stuck");
    slow.join().unwrap();
    server.join().unwrap();
}

/// The SHA-256 of 5 MiB of the byte 7, as computed by coreutils' sha256sum.
const SHA256_OF_DATA: &str = "e2925fdd17c83c77e9a4f957fd170b2a72b48ac55968943dcf962f2b853c88a9";

#[test]
#[ignore = "needs root"]
fn a_published_port_leads_to_the_guest() {
    let guest = Guest::new(Config {
        publish: ["8080", "9"].map(|port| port.parse().unwrap()).into(),
        ..Config::default()
    });
    let [port, refused] = [0, 1].map(|n| guest.network.published()[n].host.port());
    let child = guest.serve(
        "
server = socket.create_server(('', 8080))
print('listens', flush=True)
for n in range(20):
    stream, (address, _) = server.accept()
    data = read_all(stream)
    stream.sendall(address.encode() + b' ' + hashlib.sha256(data).hexdigest().encode())
    stream.close()
",
    );
    let data = vec![7; 5 << 20];
    for _ in 0..20 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&data).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (address, digest) = reply.split_once(' ').unwrap();
        assert_eq!(address, guest.gateway());
        assert_eq!(digest, SHA256_OF_DATA);
    }
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, refused)).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    finish(child);
}

#[test]
fn a_port_that_is_taken_is_an_error_with_advice() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let config = Config {
        publish: vec![format!("{port}:80").parse().unwrap()],
        ..Config::default()
    };
    let error = micabox_net::Network::start(config).unwrap_err().to_string();
    assert!(
        error.contains(&format!("127.0.0.1:{port}:80/tcp")),
        "{error}"
    );
    assert!(error.contains("take another port"), "{error}");
}

#[test]
fn a_stopped_network_leaves_nothing() {
    let config = |publish| Config {
        publish,
        ..Config::default()
    };
    // Not a port that the kernel hands out: another test could be given it in between.
    let any = "23000-23999:80".parse().unwrap();
    let (network, link) = micabox_net::Network::start(config(vec![any])).unwrap();
    let published = network.published().to_vec();
    let port = published[0].host.port();
    drop(network);
    let mut end = [0];
    let read = rustix::io::read(&link, &mut end);
    assert!(
        matches!(read, Ok(0) | Err(rustix::io::Errno::CONNRESET)),
        "{read:?}"
    );
    // The same when the machine has gone.
    let (network, link) = micabox_net::Network::start(config(published)).unwrap();
    drop(link);
    wait_until("its port is free", || {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    });
    drop(network);
}
