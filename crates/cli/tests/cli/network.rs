//! The network of real machines, from the guest's programs' and from the host's side.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use micabox_testing::network::{outside, resolver};
use sha2::{Digest, Sha256};

use crate::support::{Home, PATIENCE, wait_until};

/// The gateway's address for guests.
const GATEWAY: &str = "10.213.9.1";

/// Returns the rule that opens the address of the host that is not its loopback interface's.
fn own() -> String {
    outside().to_string()
}

/// Serves each connection with `serve`, without an end. Returns the port.
fn server(
    address: impl Into<IpAddr>,
    serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static,
) -> u16 {
    let listener = TcpListener::bind((address.into(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Answers an HTTP request with `body`.
fn answer(mut stream: TcpStream, body: &[u8]) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap_or(0) > 2 {
        line.clear();
    }
    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    // A client that was denied or is gone does not read it.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
}

fn web(address: impl Into<IpAddr>, body: &'static [u8]) -> u16 {
    server(address, |stream| answer(stream, body))
}

/// Returns bytes without a pattern that an error could preserve.
fn data(length: usize) -> Vec<u8> {
    let blocks = (0_u64..).flat_map(|n| Sha256::digest(n.to_le_bytes()));
    blocks.take(length).collect()
}

fn digest(data: &[u8]) -> String {
    let digest = Sha256::digest(data);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
#[ignore = "needs a built guest"]
fn data_sent_before_the_end_arrives_after_it() {
    const SENT: usize = 8 << 20;
    /// Bytes in a pipe and in its reader's buffer, which may not have been sent yet.
    const UNSENT: usize = 128 << 10;
    let (received, slow) = {
        let (sender, receiver) = std::sync::mpsc::channel();
        let slow = move |mut stream: TcpStream| {
            let mut piece = vec![0; 32 << 10];
            let mut received = 0;
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                received += count;
                // Sleep: a slow reader, which takes at most 6 MB/s.
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let _ = sender.send(received);
        };
        (receiver, server(outside(), slow))
    };
    let home = Home::new();
    let script = format!(
        "{{ dd if=/dev/zero bs=64k count={}; touch /sent; sleep 1000; }} 2>&- | nc {} {slow} & \
         while [ ! -e /sent ]; do sleep 0.02; done",
        SENT >> 16,
        outside(),
    );
    home.output(&[
        "run",
        "--rm",
        "--net-allow",
        &own(),
        "box",
        "sh",
        "-c",
        &script,
    ])
    .ok();
    let received = received.recv_timeout(PATIENCE).unwrap();
    assert!(received + UNSENT >= SENT, "{received} bytes");
}

#[test]
#[ignore = "needs a built guest"]
fn large_transfers_arrive_unchanged_both_ways() {
    let body: &'static [u8] = data(24 << 20).leak();
    let download = web(outside(), body);
    let (received, upload) = {
        let (sender, receiver) = std::sync::mpsc::channel();
        let port = server(outside(), move |mut stream| {
            let mut data = Vec::new();
            stream.read_to_end(&mut data).unwrap();
            sender.send(data).unwrap();
        });
        (receiver, port)
    };
    let address = outside();
    let script = format!(
        "wget -q -O /tmp/data http://{address}:{download}/ && sha256sum </tmp/data &&
         nc {address} {upload} </tmp/data"
    );
    let home = Home::new();
    let text = home
        .output(&[
            "run",
            "--rm",
            "--net-allow",
            &own(),
            "box",
            "sh",
            "-c",
            &script,
        ])
        .ok();
    assert_eq!(text, format!("{}  -\n", digest(body)));
    assert!(received.recv().unwrap() == body);
}

#[test]
#[ignore = "needs a built guest"]
fn many_connections_at_once_are_served() {
    let port = web(outside(), b"one\n");
    let address = outside();
    let script = format!(
        "for n in $(seq 150); do wget -q -O - http://{address}:{port}/ & done | wc -l; wait"
    );
    let home = Home::new();
    let text = home
        .output(&[
            "run",
            "--rm",
            "--net-allow",
            &own(),
            "box",
            "sh",
            "-c",
            &script,
        ])
        .ok();
    assert_eq!(text.trim(), "150");
}

#[test]
#[ignore = "needs a built guest"]
fn the_hosts_addresses_are_denied_but_for_rules_for_exactly_them() {
    let loopback = web(Ipv4Addr::LOCALHOST, b"private\n");
    let open = web(outside(), b"open\n");
    let address = outside();
    let dns = resolver(address).to_string();
    // Prints the answer from an address, or `no`.
    let get = format!(
        "get() {{ wget -q -O - \"http://$1/\" 2>/dev/null || echo no; }};
         get {GATEWAY}:{loopback}; get host.mica.internal:{loopback};
         get 169.254.169.254; get {address}:{open}; get www.test:{open}; get www.example:{open}"
    );
    let home = Home::new();
    let run = |flags: &[&str]| {
        let arguments = [
            &["run", "--rm", "--dns", &dns],
            flags,
            &["box", "sh", "-c", &get],
        ];
        let text = home.output(&arguments.concat()).ok();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(run(&[]), ["no", "no", "no", "no", "no", "no"]);
    assert_eq!(
        run(&["--net-allow", "0.0.0.0/0"]),
        ["no", "no", "no", "no", "no", "no"]
    );
    let rule = format!("127.0.0.1:{loopback}");
    assert_eq!(
        run(&["--net-allow", &rule]),
        ["private", "private", "no", "no", "no", "no"]
    );
    // A name does not open the host's addresses, but is resolved.
    let name = format!("*.test:{open}");
    assert_eq!(
        run(&["--net-allow", &name]),
        ["no", "no", "no", "no", "no", "no"]
    );
    let rule = format!("{address}/32");
    assert_eq!(
        run(&["--net-allow", &rule]),
        ["no", "no", "no", "open", "no", "no"]
    );
    assert_eq!(
        run(&["--net-allow", &rule, "--net-allow", &name]),
        ["no", "no", "no", "open", "open", "no"]
    );
    assert_eq!(
        run(&["--net-allow", &rule, "--net-deny", &rule]),
        ["no", "no", "no", "no", "no", "no"]
    );
}

#[test]
#[ignore = "needs a built guest"]
fn without_a_network_there_is_loopback() {
    let home = Home::new();
    let script = "ls /sys/class/net; cat /etc/resolv.conf; ping -c 1 -q 127.0.0.1 | grep -c ' 0% '";
    let arguments = ["run", "--rm", "--net", "none", "box", "sh", "-c", script];
    assert_eq!(home.output(&arguments).ok(), "lo\n1\n");
    let refused = home.output(&["run", "--net", "none", "-p", "8080:80", "box"]);
    assert_eq!(refused.code(), 125);
    assert!(
        refused.stderr().contains("--net none"),
        "{}",
        refused.stderr()
    );
}

#[test]
#[ignore = "needs a built guest"]
fn a_published_port_leads_in_and_goes_with_the_sandbox() {
    // Not an ephemeral port: the kernel could give that to another test.
    let port = (21_000..)
        .find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
        .unwrap();
    let host = port.local_addr().unwrap();
    let ports = format!("{}:8080", host.port());
    let home = Home::new();
    let arguments = ["run", "--rm", "-p", &ports, "box", "sh", "-c"];
    let script = "echo served >/tmp/index.html; httpd -p 8080 -h /tmp; echo ready; exec sleep 1000";
    let arguments = [&arguments[..], &[script]].concat();

    // The port is in use.
    let taken = home.output(&arguments);
    assert_eq!(taken.code(), 125);
    assert!(
        taken.stderr().contains("take another port"),
        "{}",
        taken.stderr()
    );
    drop(port);
    // A child that another test has just forked may have held the port too.
    wait_until("it is free", || TcpStream::connect(host).is_err());
    home.assert_nothing_left();

    let mut mica = home.start(&arguments);
    assert_eq!(mica.line(), "ready");
    for _ in 0..20 {
        let mut stream = TcpStream::connect(host).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.ends_with("served\n"), "{reply}");
    }
    mica.signal(9);
    mica.wait();
    // However the sandbox ends, the port is free.
    wait_until("the port is free", || TcpListener::bind(host).is_ok());
    home.wait_for_no_machine();
}
