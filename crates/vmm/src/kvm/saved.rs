//! A saved machine's state, as it lies in a file.
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `micabox machine` and a line feed |
//! | 4 | version, little endian |
//! | 32 | SHA-256 of the rest |
//! | | the state, in postcard's format |
//!
//! There is one version a program: what is in a state depends on nearly all of it, and a
//! machine can be started anew. The file may be anybody's, and is read in jail.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use kvm_bindings::{CpuId, kvm_cpuid_entry2};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::legacy::{Cmos, serial};
use super::vcpu;
use super::virtio::state::State as Device;
use super::worker::Controllers;

const MAGIC: &[u8; 16] = b"micabox machine\n";

/// To be raised with every change to what is saved, to the layout of the machine or to the
/// order of its devices.
const VERSION: u32 = 1;

/// Most bytes of a file: some 20 KiB a processor.
const MAX_LENGTH: u64 = 16 << 20;

/// All of a machine but its memory and what is behind its devices.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    pub(super) memory_mib: u32,
    /// What the first processor says that it can do.
    pub(super) features: Vec<kvm_cpuid_entry2>,
    /// In the order of their numbers.
    pub(super) processors: Vec<vcpu::State>,
    pub(super) controllers: Controllers,
    pub(super) serial: serial::State,
    pub(super) cmos: Cmos,
    /// In the order of their registers.
    pub(super) devices: Vec<Device>,
}

/// Why a machine can't go on from a file, for a user: with what to do.
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
    /// Writes it into an empty file.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let state = postcard::to_allocvec(self).map_err(io::Error::other)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(Sha256::digest(&state));
        bytes.extend(state);
        file.write_all_at(&bytes, 0)
    }

    /// Reads it. Others may be reading the same file.
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
        let Some((digest, state)) = rest.split_first_chunk::<32>() else {
            return Err(Error::Damaged);
        };
        if Sha256::digest(state)[..] != digest[..] {
            return Err(Error::Damaged);
        }
        postcard::from_bytes(state).map_err(|_| Error::Damaged)
    }

    /// Whether a processor that can do `features` can go on.
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

/// A door for `fuzz/`.
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing {
    use super::*;

    /// A machine without processors and devices.
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

    /// Reads a state that has the head and the digest of a file of ours. What is written of
    /// it again is read as the same.
    pub fn saved(state: &[u8]) {
        let file = || {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            File::from(rustix::fs::memfd_create("saved", flags).expect("a file"))
        };
        let (first, second) = (file(), file());
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(Sha256::digest(state));
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
    fn it_is_read_as_it_was_written() {
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
    fn another_processor_is_told_by_what_differs() {
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
