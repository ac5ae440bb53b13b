//! Hostile drivers: arbitrary bytes in rings, descriptors and registers.
//!
//! Whatever a driver does, the device stays within its bounds and can be used again after a reset.
//! Fuzzing and the tests below use this.

use std::os::unix::net::UnixStream;

use micabox_ground::lock;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen,
    socket_with, socketpair,
};
use vm_memory::{Bytes, GuestAddress};

use super::Device;
use super::balloon::Balloon;
use super::blk::{Blk, Storage};
use super::console::Console;
use super::driver::Driver;
use super::fs::Fs;
use super::pmem::Pmem;
use super::rng::Rng;
use super::state::State;
use super::vsock::Vsock;
use crate::MachineFile;
use crate::kvm::bus::Mmio;

/// Kinds of devices.
pub(crate) const KINDS: u8 = 8;

/// Start of the memory that holds the rings and descriptors of [`Driver`].
const RINGS: u64 = 0x1000;

/// Runs a driver's actions, a few bytes of `script` each, on a device of a kind.
pub(crate) fn drive(kind: u8, script: &[u8]) {
    // The other ends of streams, which read nothing.
    let (device, _host) = device(kind % KINDS);
    run(Driver::new(device), script);
}

/// As [`drive`], with a device that is restored from the state that begins `script`, after its
/// length. A saved machine may come from anywhere.
pub(crate) fn resume(kind: u8, script: &[u8]) {
    let Some((length, rest)) = script.split_first_chunk::<2>() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (state, script) = rest.split_at(length);
    let Ok(state) = postcard::from_bytes::<State>(state) else {
        return;
    };
    let (original, _hosts) = device(kind % KINDS);
    let (copy, _host) = device(kind % KINDS);
    let mut driver = Driver::new(original);
    if driver.replace(copy, state).is_ok() {
        // A restored device can be saved again.
        let saved = lock(&driver.transport).save();
        postcard::to_allocvec(&saved).unwrap();
        driver.host();
        run(driver, script);
    }
}

/// Returns inputs for [`resume`], preceded by the kind: one for each device.
pub(crate) fn states() -> Vec<Vec<u8>> {
    let state = |kind| {
        let (device, _host) = device(kind);
        let driver = Driver::new(device);
        let state = lock(&driver.transport).save();
        let state = postcard::to_allocvec(&state).unwrap();
        let length = (state.len() as u16).to_le_bytes();
        [&[kind][..], &length, &state, &[4, 0, 4, 1, 7]].concat()
    };
    (0..KINDS).map(state).collect()
}

fn run(mut driver: Driver, script: &[u8]) {
    let mut script = Script(script);
    while let Some(action) = script.byte() {
        match action % 8 {
            // Writes arbitrary bytes to the rings and the memory that they point to.
            0..=3 => {
                let at = RINGS + u64::from(script.short()) % 0x1_4000;
                let length = usize::from(action >> 3);
                let bytes = script.bytes(length);
                let ram = driver.memory.ram();
                let _ = ram.write_slice(bytes, GuestAddress(at));
            }
            4 => {
                let queue = usize::from(script.byte().unwrap_or_default());
                driver.run(queue % 8);
            }
            5 => driver.write(u64::from(script.short() % 0x110), script.word()),
            6 => {
                let at = u64::from(script.short() % 0x1000);
                let mut data = [0; 8];
                let length = 1 << (action >> 6);
                let data = data.get_mut(..length).unwrap_or_default();
                lock(&driver.transport).read(at, data);
                lock(&driver.transport).write(at, data);
            }
            _ => driver.host(),
        }
    }
    // Stopped or not, the next driver finds the device in its initial state.
    driver.write(0x70, 0);
    assert_eq!(driver.register(0x70), 0);
    assert!(!driver.is_stopped());
}

fn device(kind: u8) -> (Box<dyn Device>, Vec<UnixStream>) {
    let disk = |read_only| {
        let file = rustix::fs::memfd_create("disk", rustix::fs::MemfdFlags::CLOEXEC);
        let file = std::fs::File::from(file.unwrap());
        file.set_len(1 << 16).unwrap();
        let file = MachineFile::new(file, "disk").unwrap();
        Blk::new(Storage::new(vec![file], read_only), "disk")
    };
    match kind {
        0 => (Box::new(Rng), Vec::new()),
        1 => (Box::<Balloon>::default(), Vec::new()),
        2 => (
            Box::new(Pmem::new(&(0x1_0000_0000..0x1_0000_1000))),
            Vec::new(),
        ),
        3 => (Box::new(disk(true)), Vec::new()),
        4 => (Box::new(disk(false)), Vec::new()),
        5 => {
            let (device, clients) = vsock();
            (Box::new(device), clients)
        }
        6 => {
            // A server that has sent two replies, which nothing may wait for.
            let (host, device) = UnixStream::pair().unwrap();
            for unique in [1_u64, 2] {
                let reply = [&[16_u8, 0, 0, 0, 0, 0, 0, 0][..], &unique.to_le_bytes()].concat();
                rustix::io::write(&host, &reply).unwrap();
            }
            (
                Box::new(Fs::new(device.into(), "share").unwrap()),
                vec![host],
            )
        }
        _ => {
            let (host, guest) = UnixStream::pair().unwrap();
            (Box::new(Console::new("port", guest).unwrap()), vec![host])
        }
    }
}

/// Creates a socket device with three clients, which request ports 0 to 2 and of which one leaves,
/// and an owner that is gone.
fn vsock() -> (Vsock, Vec<UnixStream>) {
    let flags = SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let listener = socket();
    // The kernel chooses a name.
    bind(&listener, &SocketAddrUnix::new_unnamed()).unwrap();
    listen(&listener, 8).unwrap();
    let address = getsockname(&listener).unwrap();
    let clients = (0..3).map(|port| {
        let client = socket();
        connect(&client, &address).unwrap();
        let line = format!("CONNECT {port}\nand data");
        rustix::io::write(&client, line.as_bytes()).unwrap();
        UnixStream::from(client)
    });
    let clients = clients.skip(1).collect();
    let (owner, _) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (Vsock::new(listener, owner).unwrap(), clients)
}

/// Bytes that are read from the front; zeroes after the end.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes([(); 2].map(|()| self.byte().unwrap_or_default()))
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns pseudo-random bytes, the same for each seed.
    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    /// Changes one byte of a valid state at a time.
    #[test]
    fn altered_states_of_devices_do_no_harm() {
        for sound in states() {
            for at in 3..sound.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut state = sound.clone();
                    if let Some(byte) = state.get_mut(at) {
                        *byte = value;
                    }
                    if let Some((kind, script)) = state.split_first() {
                        resume(*kind, script);
                    }
                }
            }
        }
    }

    #[test]
    fn noise_in_queues_harms_no_device() {
        for seed in 0..600 {
            drive((seed % u64::from(KINDS)) as u8, &noise(seed + 1, 2000));
        }
    }

    /// Puts rings at their own places, so that chains are followed: descriptors, the available ring
    /// and its index are noise, the rest is as a driver has it.
    #[test]
    fn random_chains_harm_no_device() {
        for seed in 0..600 {
            let kind = (seed % u64::from(KINDS)) as u8;
            let mut script = Vec::new();
            // Pages 2, 5, 8... have descriptors, the pages behind them available rings.
            for page in 0..12_u16 {
                for part in 0..8_u16 {
                    script.push(31 << 3);
                    script.extend((0x1000 + page * 0x1000 + part * 31).to_le_bytes());
                    let mut bytes = noise(seed * 100 + u64::from(page * 8 + part), 31);
                    // Addresses, lengths and indices are small numbers.
                    for (at, byte) in bytes.iter_mut().enumerate() {
                        if at % 16 > 2 && at % 3 != 0 {
                            *byte = 0;
                        }
                    }
                    script.extend(bytes);
                }
            }
            for queue in 0..4 {
                script.extend([4, queue]);
            }
            drive(kind, &script);
        }
    }
}
