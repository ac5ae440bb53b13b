//! A sandbox's network: frames on one side, ordinary sockets and a policy on the other.
//!
//! A guest sees an ethernet with one neighbour, the gateway. What it sends there comes
//! out of sockets of the host's: connections, datagrams, questions for the resolver, echo
//! requests. So it takes no privileges and nothing to set up on the host, and each
//! connection is seen, and decided on, by itself.
//!
//! The guest is hostile: whatever is in a frame, it makes no panic and no more state than
//! is bounded here. TCP is smoltcp's; everything else is simple enough to be read from
//! the packet.
//!
//! [`Network::start`] runs it in a thread, which ends with the machine, with the
//! [`Network`], and with the process, and leaves nothing behind in any case.

#![forbid(unsafe_code)]

mod address;
mod datagram;
mod dns;
mod engine;
mod io;
mod link;
mod packet;
mod policy;
mod poll;
mod publish;
mod tcp;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::pipe::{PipeFlags, pipe_with};

pub use address::{Addresses, ETHERNET_HEADER};
#[doc(hidden)]
pub use dns::fuzzing;
use engine::Engine;
use io::Io;
pub use policy::{Rule, RuleError};
pub use publish::{Protocol, Publish, PublishError};

/// What a network is to be like.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Who is who.
    pub addresses: Addresses,
    /// Destinations that the guest may reach. With any of them, it reaches no others.
    ///
    /// The host's own addresses, loopback and link-local ones, and those of clouds' metadata
    /// services are open to a rule for a block that has no others: 127.0.0.0/8 or 127.0.0.1,
    /// not 0.0.0.0/0, for the gateway; each of the host's own by itself. A rule for a name
    /// never opens one of them, nor one of a private network (RFC 1918, RFC 6598).
    pub allow: Vec<Rule>,
    /// Destinations that the guest may not reach, whatever else is said. A rule for a name has
    /// questions about it refused, and closes the addresses that answers to the guest gave it:
    /// a guest that knows an address from elsewhere is kept off by rules for addresses only,
    /// or by [`Self::allow`].
    pub deny: Vec<Rule>,
    /// Ports of the host's that lead to the guest.
    pub publish: Vec<Publish>,
    /// Whether frames for the machine come behind a header of 12 bytes
    /// (`struct virtio_net_hdr_v1`), for a device that hands it to a driver which accepted
    /// `VIRTIO_NET_F_GUEST_CSUM`. TCP segments then have the sum of their pseudo-header in
    /// place of a checksum, which is the guest's to make if it needs one. Frames from the
    /// machine have no header in any case, and their checksums are not looked at.
    pub header: bool,
    /// Where the guest's questions about names go; if there are none, where the host's
    /// own go.
    pub resolvers: Vec<SocketAddr>,
}

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port can't be published.
    #[error("can't publish port {port}: {source}{}", hint(.source))]
    Publish {
        /// Which one.
        port: Publish,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The operating system says no.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its reason.
        source: std::io::Error,
    },
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => "; take a port above 1023",
        std::io::ErrorKind::AddrInUse => "; take another port, or stop who has it",
        std::io::ErrorKind::AddrNotAvailable => "; take an address of this machine",
        _ => "",
    }
}

/// A running network. It ends when this is dropped or when the machine has closed its end
/// of the link.
#[derive(Debug)]
pub struct Network {
    /// Closed to say stop.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Starts a network and returns it with the machine's end of the link: a socket that
    /// neither blocks nor mixes frames up (`SOCK_SEQPACKET`). A frame is an ethernet
    /// header, [`ETHERNET_HEADER`] bytes, and at most the MTU's number of bytes.
    ///
    /// # Errors
    /// As [`Error`] says. Published ports listen when this returns.
    pub fn start(config: Config) -> Result<(Self, OwnedFd), Error> {
        let system = |what| move |source: std::io::Error| Error::System { what, source };
        let start = system("starting the network");
        let now = Instant::now();
        let (ours, theirs) = link::pair().map_err(system("making the network's link"))?;
        let (stop, stop_here) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| start(errno.into()))?;
        let io = Io {
            poll: poll::Poll::new().map_err(start)?,
            link: link::Link::new(ours, config.addresses, config.header),
            policy: policy::Policy::new(config.allow, config.deny),
            own: policy::OwnAddresses::new()
                .map_err(system("asking the kernel for its own addresses"))?,
            resolvers: dns::Resolvers::new(config.resolvers, now),
            now,
        };
        let mut engine = Engine::new(io, stop).map_err(start)?;
        for port in config.publish {
            engine
                .publish(&port)
                .map_err(|source| Error::Publish { port, source })?;
        }
        let thread = std::thread::Builder::new()
            .name("network".into())
            .spawn(move || {
                // An error of epoll's or of the link's leaves nothing to do here, and
                // nobody to tell but the guest, which sees the link go down.
                let _ = engine.run();
            })
            .map_err(start)?;
        let network = Self {
            stop: Some(stop_here),
            thread: Some(thread),
        };
        Ok((network, theirs))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
