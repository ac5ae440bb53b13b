//! The network of a sandbox: ethernet frames on one side, ordinary sockets and a policy on the
//! other.
//!
//! The guest sees an ethernet with one neighbour, the gateway. What the guest sends there leaves
//! through the host's sockets: TCP connections, datagrams, DNS queries and echo requests. So the
//! network needs neither privileges nor set-up on the host, and the policy decides on each
//! connection separately.
//!
//! The guest is hostile: no frame may cause a panic, or more state than the bounds set here. TCP is
//! smoltcp's; every other protocol is simple enough to be parsed from the packet.
//!
//! [`Network::start`] runs the network in a thread, which ends with the machine, with the
//! [`Network`], and with the process, and leaves nothing behind in any case.

#![forbid(unsafe_code)]

mod address;
mod datagram;
mod dns;
mod engine;
mod io;
mod link;
mod packet;
mod places;
mod policy;
mod poll;
mod tcp;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use micabox_ground::lock;
use rustix::pipe::{PipeFlags, pipe_with};

pub use address::{Addresses, ETHERNET_HEADER};
#[doc(hidden)]
pub use dns::fuzzing;
use engine::Engine;
use io::Io;
use micabox_spec::network::{Publish, Rate, Rule, Rules};
pub use policy::opens_what_is_closed;

/// The configuration of a network.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The addresses of guest and gateway.
    pub addresses: Addresses,
    /// Destinations that the guest may reach. If there are any, the guest reaches no others.
    ///
    /// The host's own addresses, loopback and link-local ones, and those of clouds' metadata
    /// services are opened only by a rule whose block lies within them: for the gateway 127.0.0.0/8
    /// or 127.0.0.1, not 0.0.0.0/0; for the host's own addresses, a rule for each. A rule for a
    /// name never opens one of them, nor a private address (RFC 1918, RFC 6598).
    pub allow: Vec<Rule>,
    /// Destinations that the guest may not reach, with precedence over [`Self::allow`]. A rule for
    /// a name refuses queries for it, and denies the addresses that the guest received in answers:
    /// a guest that has an address from elsewhere is stopped only by rules for addresses, or by
    /// [`Self::allow`].
    pub deny: Vec<Rule>,
    /// What narrows the two: a destination has to pass here as well. Nothing here opens what is closed otherwise.
    pub narrower: Rules,
    /// Ports of the host that are forwarded to the guest.
    pub publish: Vec<Publish>,
    /// Whether frames for the machine come behind a header of 12 bytes
    /// (`struct virtio_net_hdr_v1`), for a device that passes the header to a driver which accepted
    /// `VIRTIO_NET_F_GUEST_CSUM`. TCP segments then have the sum of their pseudo-header in place of
    /// a checksum; the guest completes the checksum if it needs one. Frames from the machine never
    /// have a header, and their checksums are not verified.
    pub header: bool,
    /// The resolvers for the guest's DNS queries; if empty, the host's.
    pub resolvers: Vec<SocketAddr>,
    /// What limits the guest's traffic.
    pub rate: Rate,
    /// The descriptors of the process, of which the network uses up to seven eighths: how many
    /// connections, conversations and questions there can be at a time follows from it. None stands
    /// for the limit that the process has.
    pub descriptors: Option<u64>,
}

/// Errors of starting a network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port can't be published.
    #[error("can't publish port {port}: {source}{}", hint(.source))]
    Publish {
        /// Which one.
        port: Publish,
        /// The port.
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => "; take a port above 1023",
        std::io::ErrorKind::AddrInUse => "; take another port, or stop the program that uses it",
        std::io::ErrorKind::AddrNotAvailable => "; take an address of this machine",
        _ => "",
    }
}

/// A running network. It stops when this is dropped or when the machine has closed its end of the
/// link.
#[derive(Debug)]
pub struct Network {
    /// A byte makes the thread look at `rate`; closed to stop the thread.
    control: Option<OwnedFd>,
    /// The limits that the thread has not applied yet.
    rate: Arc<Mutex<Option<Rate>>>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<link::Counters>,
    published: Vec<Publish>,
}

/// Bytes of ethernet frames since a network's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the guest.
    pub received: u64,
    /// From the guest.
    pub sent: u64,
}

impl Network {
    /// Starts a network and returns it with the machine's end of the link: a non-blocking socket
    /// that preserves frame boundaries (`SOCK_SEQPACKET`). A frame is an ethernet header of
    /// [`ETHERNET_HEADER`] bytes, and at most the MTU's number of bytes. Published ports listen
    /// when this returns.
    ///
    /// # Errors
    /// When a port can't be published, or a system call fails.
    pub fn start(config: Config) -> Result<(Self, OwnedFd), Error> {
        let (ours, theirs) = link()?;
        Ok((Self::start_on(ours, config)?, theirs))
    }

    /// As [`Network::start`], on one end of a [`link()`] whose other end a machine may have already.
    ///
    /// # Errors
    /// As [`Network::start`].
    pub fn start_on(link: OwnedFd, config: Config) -> Result<Self, Error> {
        let system = |what| move |source: std::io::Error| Error::System { what, source };
        let start = system("starting the network");
        let now = Instant::now();
        let (control, control_here) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|errno| start(errno.into()))?;
        let mut io = Io {
            poll: poll::Poll::new().map_err(start)?,
            link: link::Link::new(link, config.addresses, config.header),
            policy: policy::Policy::new(
                Rules {
                    allow: config.allow,
                    deny: config.deny,
                },
                config.narrower,
            ),
            own: policy::OwnAddresses::new()
                .map_err(system("asking the kernel for its own addresses"))?,
            resolvers: dns::Resolvers::new(config.resolvers, now),
            now,
        };
        io.link.limit(config.rate, now);
        let counters = io.link.counters();
        let rate = Arc::default();
        let places = places::Places::new(config.descriptors);
        let mut engine = Engine::new(io, control, Arc::clone(&rate), places).map_err(start)?;
        let ports = config.publish.into_iter().map(|port| {
            let published = engine.publish(port);
            published.map_err(|source| Error::Publish { port, source })
        });
        let published = ports.collect::<Result<_, _>>()?;
        let thread = std::thread::Builder::new()
            .name("network".into())
            .spawn(move || {
                // After an error of epoll or of the link there is nothing left to do here, and only
                // the guest notices: its link goes down.
                let _ = engine.run();
            })
            .map_err(start)?;
        Ok(Self {
            control: Some(control_here),
            rate,
            thread: Some(thread),
            counters,
            published,
        })
    }

    /// Limits the traffic from now on, in place of all earlier limits.
    pub fn limit(&self, rate: Rate) {
        *lock(&self.rate) = Some(rate);
        if let Some(control) = &self.control {
            // A full pipe has woken the thread already, and a thread that ended has no traffic.
            let _ = rustix::io::write(control, b"l");
        }
    }

    /// Returns the ports that are published, with the host's port where any was to do.
    pub fn published(&self) -> &[Publish] {
        &self.published
    }

    /// Returns how much the guest has received and sent.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            received: self.counters.received.load(Ordering::Relaxed),
            sent: self.counters.sent.load(Ordering::Relaxed),
        }
    }
}

/// Makes a link: the network's end, for [`Network::start_on`], and the machine's. Frames wait in the
/// kernel until the network runs, as many as its buffer holds.
///
/// # Errors
/// When a system call fails.
pub fn link() -> Result<(OwnedFd, OwnedFd), Error> {
    link::pair().map_err(|source| Error::System {
        what: "making the network's link",
        source,
    })
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.control.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
