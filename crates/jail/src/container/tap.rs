//! A container's network interface: a TAP device in its network namespace, whose other end is a file.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Bytes of the header before each frame: `struct virtio_net_hdr_v1`.
const HEADER: libc::c_int = 12;

/// The interface's name inside.
const NAME: &[u8] = b"eth0";

/// `TUNSETVNETHDRSZ`, `_IOW('T', 216, int)` of linux/if_tun.h.
const SET_HEADER: libc::Ioctl = 0x4004_54d8;

/// A network interface.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// Its ethernet address, in the order of transmission.
    pub address: [u8; 6],
    /// Size in bytes of the largest IP packet.
    pub mtu: u16,
}

impl Interface {
    /// Makes the interface in the calling process's network namespace, where `device` was opened, and which is its other
    /// end then.
    pub(super) fn make(&self, device: &OwnedFd) -> io::Result<()> {
        let mut request = request();
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        control(device.as_raw_fd(), libc::TUNSETIFF as _, &request)?;
        control(device.as_raw_fd(), SET_HEADER, &HEADER)?;
        let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        // SAFETY: `sockaddr` is plain data, valid when zero.
        let mut address: libc::sockaddr = unsafe { zeroed() };
        address.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in address.sa_data.iter_mut().zip(self.address) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_hwaddr = address;
        control(socket.as_raw_fd(), libc::SIOCSIFHWADDR as _, &request)?;
        request.ifr_ifru.ifru_mtu = self.mtu.into();
        control(socket.as_raw_fd(), libc::SIOCSIFMTU as _, &request)?;
        Ok(())
    }
}

/// Returns a request about the interface.
fn request() -> libc::ifreq {
    // SAFETY: `ifreq` is plain data, valid when zero.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(NAME) {
        *to = from.cast_signed();
    }
    request
}

fn control<T>(descriptor: RawFd, what: libc::Ioctl, argument: &T) -> io::Result<()> {
    // SAFETY: every caller passes the structure that the request reads, initialised. TUNSETIFF writes the
    // name back, into a structure that is not used as shared memory.
    match unsafe { libc::ioctl(descriptor, what, std::ptr::from_ref(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
