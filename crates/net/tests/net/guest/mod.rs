//! A guest without a virtual machine: a network namespace on the other end of the link,
//! with the machine's own kernel as the oracle for every protocol.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use micabox_net::{Addresses, Config, Network};
use micabox_testing::PATIENCE;
use micabox_testing::network::outside;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Debian's own, which has only the standard library.
const PYTHON: &str = "/usr/bin/python3";

/// Before every script.
const PRELUDE: &str = "
import hashlib, os, socket, struct, sys, threading, time
socket.setdefaulttimeout(PATIENCE)
def connect(address, port):
    return socket.create_connection((address, int(port)))
def read_all(stream):
    pieces = []
    while piece := stream.recv(1 << 20): pieces.append(piece)
    return b''.join(pieces)
def code(action):
    try: action()
    except OSError as error: return error.errno
    return 0
";

pub struct Guest {
    pub network: Network,
    link: OwnedFd,
    addresses: Addresses,
    header: bool,
}

impl Guest {
    pub fn new(config: Config) -> Self {
        Self::attempt(config).unwrap()
    }

    pub fn attempt(config: Config) -> Result<Self, micabox_net::Error> {
        // The network allows half as many connections as it may have descriptors.
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
        let Config {
            addresses, header, ..
        } = config;
        let (network, link) = Network::start(config)?;
        Ok(Self {
            network,
            link,
            addresses,
            header,
        })
    }

    /// A guest that may reach everything, this machine's own addresses included.
    pub fn free() -> Self {
        Self::with_rules(&["0.0.0.0/0", "127.0.0.0/8", &outside().to_string()], &[])
    }

    pub fn with_rules(allow: &[&str], deny: &[&str]) -> Self {
        let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Self::new(Config {
            allow: rules(allow),
            deny: rules(deny),
            ..Config::default()
        })
    }

    pub fn gateway(&self) -> String {
        self.addresses.gateway.to_string()
    }

    /// Starts a Python script in the guest, with these arguments.
    pub fn start(&self, script: &str, arguments: &[&str]) -> Child {
        let link = rustix::io::dup(&self.link).unwrap(); // inherited, unlike the original
        let Addresses {
            guest_mac,
            guest,
            prefix,
            gateway,
            mtu,
            ..
        } = self.addresses;
        Command::new("unshare")
            .args(["--net", "--mount", PYTHON])
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/net/guest/guest.py"
            ))
            .arg(link.as_raw_fd().to_string())
            .arg(guest_mac.map(|byte| format!("{byte:02x}")).join(":"))
            .args([format!("{guest}/{prefix}"), gateway.to_string()])
            .arg(mtu.to_string())
            .arg(if self.header { "header" } else { "sums" })
            .args([PYTHON, "-c"])
            .arg(format!(
                "PATIENCE = {}\n{PRELUDE}\n{script}",
                PATIENCE.as_secs()
            ))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is installed")
    }

    /// Starts a Python script in the guest that prints `listens`, and waits for that.
    pub fn serve(&self, script: &str) -> Child {
        let mut child = self.start(script, &[]);
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "listens\n");
        child
    }

    /// Runs a Python script in the guest and returns what it printed.
    #[track_caller]
    pub fn run(&self, script: &str, arguments: &[&str]) -> String {
        let output = self.start(script, arguments).wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}: {text}", output.status);
        text.trim_end().to_owned()
    }
}
