//! The file format of a saved machine's state.
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `micabox machine` and a line feed |
//! | 4 | version, little endian |
//! | 4 | CRC-32C of the rest, little endian |
//! | | the state, in postcard's format |
//!
//! Each version of the program reads only its own format: a state depends on nearly all of the
//! program, and a machine can be started anew. The file may come from anywhere, and is read in the
//! jail.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crc32c::crc32c;
use kvm_bindings::{CpuId, kvm_cpuid_entry2};
use serde::{Deserialize, Serialize};

use super::legacy::{Cmos, serial};
use super::vcpu;
use super::virtio::state::State as Device;
use super::worker::Controllers;

const MAGIC: &[u8; 16] = b"micabox machine\n";

/// Must be raised with every change to what is saved, to the layout of the machine or to the order
/// of its devices.
pub(crate) const VERSION: u32 = 2;

/// Maximum bytes of a file; a processor takes some 20 KiB.
const MAX_LENGTH: u64 = 16 << 20;

/// The state of a machine, except for its memory and what is behind its devices.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    pub(super) memory_mib: u32,
    /// The first processor's CPUID.
    pub(super) features: Vec<kvm_cpuid_entry2>,
    /// In the order of their numbers.
    pub(super) processors: Vec<vcpu::State>,
    pub(super) controllers: Controllers,
    pub(super) serial: serial::State,
    pub(super) cmos: Cmos,
    /// In the order of their registers.
    pub(super) devices: Vec<Device>,
}

/// Why a machine can't be restored from a file, for a user: with a remedy.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("reading it: {0}")]
    Read(#[from] io::Error),
    #[error("it is damaged; make it again")]
    Damaged,
    #[error(
        "it was made by another version of mica (its format is {0}, this one's {VERSION}); \
         make it again with this one"
    )]
    Version(u32),
    #[error(
        "it was made on another processor (CPUID leaf {0:#x} differs); use it on that \
         machine, or make it again on this one"
    )]
    Processor(u32),
    #[error("it is of another machine: {0}; make it again")]
    Machine(&'static str),
    #[error("{0}; make it again")]
    Refused(String),
}

impl Saved {
    /// Writes the state into an empty file.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let state = postcard::to_allocvec(self).map_err(io::Error::other)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(crc32c(&state).to_le_bytes());
        bytes.extend(state);
        file.write_all_at(&bytes, 0)
    }

    /// Reads a state. Other processes may read the same file at the same time.
    pub(super) fn read(file: &File) -> Result<Self, Error> {
        const HEAD: usize = MAGIC.len() + 4;
        let length = file.metadata()?.len();
        let mut head = [0; HEAD];
        if length < HEAD as u64 || length > MAX_LENGTH {
            return Err(Error::Damaged);
        }
        file.read_exact_at(&mut head, 0)?;
        let Some((magic, version)) = head.split_last_chunk() else {
            return Err(Error::Damaged);
        };
        if magic != MAGIC {
            return Err(Error::Damaged);
        }
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(Error::Version(version));
        }
        let mut rest = vec![0; length as usize - HEAD];
        file.read_exact_at(&mut rest, HEAD as u64)?;
        let Some((checksum, state)) = rest.split_first_chunk() else {
            return Err(Error::Damaged);
        };
        if crc32c(state) != u32::from_le_bytes(*checksum) {
            return Err(Error::Damaged);
        }
        postcard::from_bytes(state).map_err(|_| Error::Damaged)
    }

    /// Checks that the state can continue on a processor with these `features`.
    pub(super) fn check_processor(&self, features: &CpuId) -> Result<(), Error> {
        let here = features.as_slice();
        let differs = |(saved, here): &(&kvm_cpuid_entry2, &kvm_cpuid_entry2)| saved != here;
        match self.features.iter().zip(here).find(differs) {
            Some((saved, _)) => Err(Error::Processor(saved.function)),
            None if self.features.len() == here.len() => Ok(()),
            None => Err(Error::Processor(0)),
        }
    }
}

/// Entry point for `fuzz/`.
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing {
    use super::*;

    /// Returns the state of a machine without processors and devices.
    pub fn sample() -> Vec<u8> {
        let saved = Saved {
            memory_mib: 128,
            features: vec![kvm_cpuid_entry2::default(); 2],
            processors: Vec::new(),
            controllers: Controllers::default(),
            serial: vm_superio::serial::SerialState::default().into(),
            cmos: Cmos::default(),
            devices: Vec::new(),
        };
        postcard::to_allocvec(&saved).expect("into memory")
    }

    /// Reads a state with a correct head and checksum, and checks that the state is the same when it
    /// is written and read again.
    pub fn saved(state: &[u8]) {
        let file = || {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            File::from(rustix::fs::memfd_create("saved", flags).expect("a file"))
        };
        let (first, second) = (file(), file());
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(crc32c(state).to_le_bytes());
        bytes.extend(state);
        first.write_all_at(&bytes, 0).expect("into memory");
        let Ok(saved) = Saved::read(&first) else {
            return;
        };
        saved.write(&second).expect("into memory");
        let again = Saved::read(&second).expect("it is ours");
        let text = |saved: &Saved| postcard::to_allocvec(saved).expect("into memory");
        assert_eq!(text(&again), text(&saved));
        if let Ok(features) = CpuId::from_entries(&saved.features) {
            saved.check_processor(&features).expect("its own");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Saved {
        Saved {
            memory_mib: 128,
            features: vec![kvm_cpuid_entry2 {
                function: 7,
                ebx: 1,
                ..Default::default()
            }],
            processors: Vec::new(),
            controllers: Controllers::default(),
            serial: vm_superio::serial::SerialState::default().into(),
            cmos: Cmos::default(),
            devices: Vec::new(),
        }
    }

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn a_saved_machine_is_read_as_it_was_written() {
        let file = tempfile::tempfile().unwrap();
        state().write(&file).unwrap();
        let read = Saved::read(&file).unwrap();
        assert_eq!((read.memory_mib, read.features.len()), (128, 1));
    }

    #[test]
    fn every_altered_byte_and_every_length_is_noticed() {
        let good = tempfile::tempfile().unwrap();
        state().write(&good).unwrap();
        let length = good.metadata().unwrap().len() as usize;
        let mut bytes = vec![0; length];
        good.read_exact_at(&mut bytes, 0).unwrap();
        for length in 0..length {
            let short = Saved::read(&file(&bytes[..length]));
            assert!(matches!(short, Err(Error::Damaged)), "{length}");
        }
        for at in 0..length {
            let mut altered = bytes.clone();
            altered[at] ^= 0x40;
            match Saved::read(&file(&altered)) {
                Err(Error::Version(_)) => assert!((16..20).contains(&at)),
                Err(Error::Damaged) => assert!(!(16..20).contains(&at)),
                Err(error) => panic!("{at}: {error}"),
                Ok(_) => panic!("{at} does not matter"),
            }
        }
    }

    #[test]
    fn another_processor_is_named_by_what_differs() {
        let saved = state();
        let mut entries = saved.features.clone();
        let features = |entries: &[kvm_cpuid_entry2]| CpuId::from_entries(entries).unwrap();
        saved.check_processor(&features(&entries)).unwrap();
        entries[0].ebx = 3;
        let other = saved.check_processor(&features(&entries)).unwrap_err();
        assert!(other.to_string().contains("leaf 0x7"), "{other}");
        let other = saved.check_processor(&features(&[])).unwrap_err();
        assert!(other.to_string().contains("another processor"), "{other}");
    }
}
