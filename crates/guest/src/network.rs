//! The machine's interfaces: loopback, and the one that the host serves.
//!
//! They are configured through the kernel's oldest interface, `ioctl` on any socket: it takes six
//! calls and no library.

use std::fs;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use micabox_wire::{BootFailed, Network};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, netdevice};

use crate::announced::wait_for;
use crate::errno::last_errno;
use crate::step::Step;

const STEP: &str = "start the network";
const LOOPBACK: &str = "lo";

/// How long the machine waits at its end for the delivery of data that its programs sent.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The interface that the host serves.
#[derive(Debug)]
pub struct Interface {
    /// The kernel's number for it, which remains valid if a program renames it.
    index: u32,
    settings: Network,
}

/// Starts the loopback interface, and configures the other one as requested.
pub fn start(network: Option<&Network>) -> Result<Option<Interface>, BootFailed> {
    let control = Control::new().step(STEP, "socket")?;
    control.up(LOOPBACK).step(STEP, LOOPBACK)?;
    let Some(network) = network else {
        return Ok(None);
    };
    let name = wait_for(|| name_of(network.hardware_address))
        .ok_or(Errno::NODEV)
        .step(STEP, "the interface that the host announced")?;
    // Without IPv6 the kernel looks for neither a router nor a duplicate address; there can be
    // none. Loopback keeps its ::1.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), b"1");
    let interface = netdevice::name_to_index(&control.0, &name)
        .and_then(|index| {
            control.configure(&name, network)?;
            Ok(Interface {
                index,
                settings: *network,
            })
        })
        .step(STEP, name)?;
    Ok(Some(interface))
}

impl Interface {
    /// Gives the interface of a restored copy another ethernet address, and configures its IPv4
    /// addresses again if they differ.
    pub fn change(&mut self, to: &Network) -> Result<(), BootFailed> {
        let control = Control::new().step(STEP, "socket")?;
        let name = netdevice::index_to_name(&control.0, self.index)
            .step(STEP, "the interface that the original had")?;
        control
            .set_hardware_address(&name, to.hardware_address)
            .step(STEP, &name)?;
        let from = std::mem::replace(&mut self.settings, *to);
        if (from.address, from.prefix, from.gateway) == (to.address, to.prefix, to.gateway) {
            return Ok(());
        }
        control.configure(&name, to).step(STEP, name)
    }
}

/// Waits, for a few seconds at most, until the data of closed TCP connections has arrived: data
/// that the kernel has yet to send is lost when the machine ends.
pub fn settle() {
    let deadline = Instant::now() + LAST_WORDS;
    while has_unacknowledged() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a connection that a program has closed waits for the other end's acknowledgement.
fn has_unacknowledged() -> bool {
    /// `TCP_FIN_WAIT1`, `TCP_LAST_ACK` and `TCP_CLOSING` of the kernel's `net/tcp_states.h`.
    const STATES: [&str; 3] = ["04", "09", "0B"];
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let Ok(table) = fs::read_to_string(table) else {
            return false;
        };
        let state = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        let mut states = table.lines().filter_map(state);
        states.any(|state| STATES.contains(&state.as_str()))
    })
}

/// Returns the name of the interface with an ethernet address.
fn name_of(address: [u8; 6]) -> Option<String> {
    let [a, b, c, d, e, f] = address;
    let wanted = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    let interfaces = fs::read_dir("/sys/class/net").ok()?;
    let mut names = interfaces.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find(|name| {
        fs::read_to_string(format!("/sys/class/net/{name}/address"))
            .is_ok_and(|found| found.trim_end() == wanted)
    })
}

/// A socket for the kernel's interface requests.
struct Control(OwnedFd);

impl Control {
    fn new() -> Result<Self, Errno> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        Ok(Self(socket))
    }

    /// Starts an interface.
    fn up(&self, name: &str) -> Result<(), Errno> {
        let mut request = request(name);
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        self.call(libc::SIOCSIFFLAGS as _, &request)
    }

    /// Configures an interface's addresses, starts it, and makes it the default route.
    fn configure(&self, name: &str, network: &Network) -> Result<(), Errno> {
        let mask = u32::MAX
            .checked_shl(32_u32.saturating_sub(network.prefix.into()))
            .unwrap_or(0);
        self.set(name, libc::SIOCSIFADDR as _, network.address)?;
        self.set(name, libc::SIOCSIFNETMASK as _, mask.to_be_bytes())?;
        self.up(name)?;
        self.add_default_route(network.gateway)
    }

    fn set_hardware_address(&self, name: &str, address: [u8; 6]) -> Result<(), Errno> {
        let mut request = request(name);
        // SAFETY: `sockaddr` is plain data, valid when zero.
        let mut hardware: libc::sockaddr = unsafe { zeroed() };
        hardware.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in hardware.sa_data.iter_mut().zip(address) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_hwaddr = hardware;
        self.call(libc::SIOCSIFHWADDR as _, &request)
    }

    /// Sets one of an interface's addresses.
    fn set(&self, name: &str, what: libc::Ioctl, address: [u8; 4]) -> Result<(), Errno> {
        let mut request = request(name);
        request.ifr_ifru.ifru_addr = socket_address(address);
        self.call(what, &request)
    }

    fn add_default_route(&self, gateway: [u8; 4]) -> Result<(), Errno> {
        // SAFETY: `rtentry` is plain data, valid when zero.
        let mut route: libc::rtentry = unsafe { zeroed() };
        route.rt_dst = socket_address([0; 4]);
        route.rt_genmask = socket_address([0; 4]);
        route.rt_gateway = socket_address(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        self.call(libc::SIOCADDRT as _, &route)
    }

    fn call<T>(&self, what: libc::Ioctl, argument: &T) -> Result<(), Errno> {
        // SAFETY: every caller passes the structure that the request reads, initialised.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), what, std::ptr::from_ref(argument)) };
        if result == 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    }
}

/// Returns a request about an interface.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is plain data, valid when zero.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request
}

/// Returns an IPv4 address without a port, in the format of the requests.
fn socket_address(address: [u8; 4]) -> libc::sockaddr {
    // SAFETY: `sockaddr` is plain data, valid when zero.
    let mut socket_address: libc::sockaddr = unsafe { zeroed() };
    socket_address.sa_family = libc::AF_INET as libc::sa_family_t;
    // `sockaddr_in` begins with the port, two bytes.
    for (to, from) in socket_address.sa_data.iter_mut().skip(2).zip(address) {
        *to = from.cast_signed();
    }
    socket_address
}
