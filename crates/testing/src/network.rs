//! Networks for tests: addresses, a name server, and a namespace with a neighbour.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::wait_until;

/// Set in the process that runs in the namespace.
const INSIDE: &str = "MICABOX_NET_TEST_INSIDE";

/// The test's address in its namespace. As all addresses here, it is a benchmark address (RFC 2544): no other host
/// has it.
pub const OWN: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The neighbour's address.
pub const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// A network for one test: the test runs again as a process in a network namespace, which has one neighbour,
/// another namespace.
pub struct World {
    neighbour: Child,
}

impl World {
    /// In the test's namespace, returns the world; outside, runs the calling test in one and returns
    /// None.
    pub fn enter() -> Option<Self> {
        if std::env::var_os(INSIDE).is_some() {
            return Some(Self::new());
        }
        let thread = std::thread::current();
        let test = thread.name().expect("a test's thread has its name");
        let output = Command::new("unshare")
            .args(["--net", "--fork", "--kill-child"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--include-ignored", "--nocapture"])
            .env(INSIDE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .and_then(Child::wait_with_output)
            .expect("unshare is installed");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains(" 1 passed"),
            "{text}"
        );
        None
    }

    fn new() -> Self {
        let neighbour = Command::new("unshare")
            .args(["--net", "sleep", "infinity"])
            .spawn()
            .unwrap();
        let world = Self { neighbour };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        wait_until("the neighbour is apart", || world.namespace_name() != own);
        ip("link set lo up");
        let pid = world.neighbour.id();
        ip(&format!(
            "link add near type veth peer name far netns {pid}"
        ));
        world.neighbour_ip("link set lo up");
        world.neighbour_ip("link set far up");
        world.have(NEIGHBOUR);
        ip(&format!("addr add {OWN}/24 dev near"));
        ip("link set near up");
        ip(&format!("route add default via {NEIGHBOUR}"));
        world.neighbour_ip(&format!("route add default via {OWN}"));
        world
    }

    fn namespace_name(&self) -> std::path::PathBuf {
        std::fs::read_link(format!("/proc/{}/ns/net", self.neighbour.id())).unwrap()
    }

    fn neighbour_ip(&self, words: &str) {
        let pid = self.neighbour.id().to_string();
        run(
            Command::new("nsenter").args(["-t", &pid, "-n", "ip"]),
            words,
        );
    }

    /// Gives the neighbour an address; packets to unknown addresses go to the neighbour.
    pub fn have(&self, address: Ipv4Addr) {
        self.neighbour_ip(&format!("addr add {address}/24 dev far"));
    }

    /// Makes the neighbour drop packets to these addresses.
    pub fn swallow(&self, block: &str) {
        self.neighbour_ip(&format!("route add blackhole {block}"));
    }

    /// Runs an action, such as opening a socket, in the neighbour's namespace.
    pub fn there<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let path = format!("/proc/{}/ns/net", self.neighbour.id());
        let namespace: OwnedFd = std::fs::File::open(path).unwrap().into();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                use std::os::fd::AsFd;
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind).unwrap();
                action()
            });
            thread.join().unwrap()
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.neighbour.kill();
        let _ = self.neighbour.wait();
    }
}

/// Changes addresses, routes and interfaces of the test's namespace.
pub fn ip(words: &str) {
    run(&mut Command::new("ip"), words);
}

fn run(command: &mut Command, words: &str) {
    let status = command.args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// Returns a counter of the kernel for the test's namespace, such as `Tcp ActiveOpens`: all
/// attempts to connect from there.
pub fn counter(protocol: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/snmp").unwrap();
    let prefix = format!("{protocol}:");
    let mut rows = text.lines().filter(|line| line.starts_with(&prefix));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(found, _)| *found == name).unwrap();
    value.parse().unwrap()
}

/// Returns an address of this machine that is not its loopback interface's.
pub fn outside() -> Ipv4Addr {
    const ADDED: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 1);
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Sends nothing, but selects the source address.
    if socket.connect("192.0.2.77:9").is_ok()
        && let IpAddr::V4(address) = socket.local_addr().unwrap().ip()
        && !address.is_loopback()
    {
        return address;
    }
    let words = format!("addr add {ADDED}/32 dev lo");
    // An earlier test may have added it; binding shows that.
    let _ = Command::new("ip").args(words.split(' ')).output();
    TcpListener::bind((ADDED, 0)).expect("needs root, or any network");
    ADDED
}

/// Starts a resolver: `*.test` has the address, no other name exists.
pub fn resolver(answer: Ipv4Addr) -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let query = &buffer[..length];
            let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let mut reply = query[..end].to_vec();
            let known = query[12..end].windows(5).any(|label| label == b"\x04test");
            reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0]);
            if !known {
                reply[3] |= 3;
            } else if query[end - 3] == 1 {
                reply[7] = 1;
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                reply.extend(answer.octets());
            }
            let _ = socket.send_to(&reply, from);
        }
    });
    address
}
