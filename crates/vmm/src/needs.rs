//! What a saved machine needs of the machine that it is to continue on, as another one can be told before it has the
//! machine's memory.

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;

use micabox_jail::{Call, Kind, Limits, Worker};
use serde::{Deserialize, Serialize};

use crate::Lack;
use crate::cpu::vendor;

/// The kind of worker that reads a saved machine, which may come from anywhere.
pub const NEEDS: Kind = Kind::parser::<Read>();

/// Bytes of memory of that worker: the longest file twice, and its parts.
const MEMORY: u64 = 128 << 20;

/// Most leaves of CPUID that are compared: KVM knows fewer.
const MOST_LEAVES: usize = 256;

/// The monitor that saves machines.
const MONITOR: &str = "kvm";

/// What a saved machine needs. Its fields are those of a registry's document, so that none of them is trusted: the
/// machine's own state is checked again when it is restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// The architecture, as Rust calls it.
    pub architecture: String,
    /// The monitor.
    pub monitor: String,
    /// The version of the format of the machine's state.
    pub format: u32,
    /// The vendor of the processor, by CPUID.
    pub vendor: String,
    /// The number of virtual processors.
    pub cpus: u8,
    /// The first processor's CPUID: leaf, index, flags, EAX, EBX, ECX, EDX.
    pub cpuid: Vec<[u32; 7]>,
}

/// Why a saved machine can't continue here: what differs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// It needs another architecture.
    #[error(
        "it was saved on {theirs}, and this machine is {}",
        std::env::consts::ARCH
    )]
    Architecture {
        /// Of the saved machine.
        theirs: String,
    },
    /// It was saved by another monitor.
    #[error(
        "it was saved by the monitor `{theirs}`, and this version of mica continues machines of `{MONITOR}`"
    )]
    Monitor {
        /// Of the saved machine.
        theirs: String,
    },
    /// Another version of mica has saved it.
    #[error(
        "it was saved by another version of mica: its format of machines is {theirs}, and this version's is {ours}"
    )]
    Format {
        /// Of the saved machine.
        theirs: u32,
        /// Of this program.
        ours: u32,
    },
    /// Another version of mica has saved it, whose agent is in its memory.
    #[error(
        "it was saved by another version of mica: its agent speaks version {theirs} of the protocol, \
         and this version's speaks {ours}"
    )]
    Agent {
        /// Of the saved machine.
        theirs: u32,
        /// Of this program.
        ours: u32,
    },
    /// It was saved on another vendor's processor.
    #[error("it was saved on a processor of {theirs}, and this machine's is of {ours}")]
    Vendor {
        /// Of the saved machine.
        theirs: String,
        /// Of this machine.
        ours: String,
    },
    /// There is no KVM here.
    #[error("it has memory, which continues on KVM only: {0}")]
    NoKvm(Lack),
    /// The processors have other features.
    #[error("it was saved on another processor: {0}")]
    Processor(LeafDifference),
}

/// A leaf of CPUID that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafDifference {
    /// Leaf and index.
    leaf: [u32; 2],
    /// The name and the values there and here of the first register that differs; none if only one has the leaf.
    register: Option<(&'static str, u32, u32)>,
}

impl fmt::Display for LeafDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [leaf, index] = self.leaf;
        write!(f, "CPUID leaf {leaf:#x}, index {index}, ")?;
        match self.register {
            Some((name, theirs, ours)) => {
                write!(f, "has {name} = {theirs:#010x} there and {ours:#010x} here")
            }
            None => f.write_str("is there on one of the two only"),
        }
    }
}

/// A saved machine whose state can't be read.
#[derive(Debug, thiserror::Error)]
#[error("the machine's state can't be read: {0}")]
pub struct Unreadable(String);

impl Needs {
    /// Reads what a saved machine needs from its state, in a process of its own.
    ///
    /// # Errors
    /// It is none that this version has saved, or there is no such process.
    pub fn of(state: File) -> Result<Self, Unreadable> {
        let limits = Limits {
            memory: MEMORY,
            ..Limits::default()
        };
        let worker = Worker::start(&Read, vec![OwnedFd::from(state)], &limits);
        let needs = worker.and_then(Worker::wait);
        needs.map_err(|error| Unreadable(error.to_string()))
    }

    /// Checks that a machine with these needs can continue on this machine. Whether there is a KVM that works is
    /// looked at last, so that what can't be changed is named first.
    ///
    /// # Errors
    /// [`Difference`]: the first one.
    pub fn check(&self) -> Result<(), Difference> {
        if self.architecture != std::env::consts::ARCH {
            return Err(Difference::Architecture {
                theirs: self.architecture.clone(),
            });
        }
        if self.monitor != MONITOR {
            return Err(Difference::Monitor {
                theirs: self.monitor.clone(),
            });
        }
        let ours = vendor();
        if self.vendor != ours {
            return Err(Difference::Vendor {
                theirs: self.vendor.clone(),
                ours,
            });
        }
        self.check_monitor()
    }

    #[cfg(target_arch = "x86_64")]
    fn check_monitor(&self) -> Result<(), Difference> {
        let ours = crate::kvm::FORMAT;
        if self.format != ours {
            return Err(Difference::Format {
                theirs: self.format,
                ours,
            });
        }
        let here = crate::kvm::features_here(self.cpus).map_err(Difference::NoKvm)?;
        match first_difference(&self.cpuid, &here) {
            None => Ok(()),
            Some(leaf) => Err(Difference::Processor(leaf)),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn check_monitor(&self) -> Result<(), Difference> {
        let lack = Lack::new("our own virtual machine monitor is for x86-64");
        Err(Difference::NoKvm(lack))
    }
}

/// Returns the first leaf of either that the other has not, or with other registers.
fn first_difference(theirs: &[[u32; 7]], ours: &[[u32; 7]]) -> Option<LeafDifference> {
    const REGISTERS: [&str; 5] = ["flags", "EAX", "EBX", "ECX", "EDX"];
    let key = |leaf: &[u32; 7]| [leaf[0], leaf[1]];
    let theirs = &theirs[..theirs.len().min(MOST_LEAVES)];
    for leaf in theirs {
        let same = ours.iter().find(|ours| key(ours) == key(leaf));
        let values = same
            .into_iter()
            .flat_map(|ours| leaf.iter().zip(ours).skip(2));
        let mut registers = REGISTERS.into_iter().zip(values);
        let differing = registers.find(|(_, (theirs, ours))| theirs != ours);
        if same.is_none() || differing.is_some() {
            return Some(LeafDifference {
                leaf: key(leaf),
                register: differing.map(|(name, (theirs, ours))| (name, *theirs, *ours)),
            });
        }
    }
    let is_known = |ours: &&[u32; 7]| theirs.iter().any(|theirs| key(theirs) == key(ours));
    let missing = ours.iter().find(|ours| !is_known(ours))?;
    Some(LeafDifference {
        leaf: key(missing),
        register: None,
    })
}

/// A request to the worker, whose file is a machine's state.
#[derive(Serialize, Deserialize)]
struct Read;

impl Call for Read {
    const KIND: &'static str = "needs";
    type Reply = Needs;
    type Error = String;

    #[cfg(target_arch = "x86_64")]
    fn run(self, files: Vec<OwnedFd>) -> Result<Needs, String> {
        let state = files.into_iter().next().ok_or("no file")?;
        let (format, cpus, cpuid) = crate::kvm::read_features(&File::from(state))?;
        Ok(Needs {
            architecture: std::env::consts::ARCH.to_owned(),
            monitor: MONITOR.to_owned(),
            format,
            vendor: vendor_of(&cpuid),
            cpus,
            cpuid,
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn run(self, _: Vec<OwnedFd>) -> Result<Needs, String> {
        Err("our own virtual machine monitor is for x86-64".to_owned())
    }
}

/// Returns the vendor that a CPUID names.
#[cfg(target_arch = "x86_64")]
fn vendor_of(cpuid: &[[u32; 7]]) -> String {
    let first = cpuid.iter().find(|leaf| leaf[0] == 0);
    first.map_or_else(String::new, |leaf| {
        let [_, _, _, _, ebx, ecx, edx] = *leaf;
        crate::cpu::vendor_text(ebx, ecx, edx)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs() -> Needs {
        Needs {
            architecture: std::env::consts::ARCH.to_owned(),
            monitor: MONITOR.to_owned(),
            format: 2,
            vendor: vendor(),
            cpus: 1,
            cpuid: Vec::new(),
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn what_differs_is_named_and_what_cannot_be_changed_first() {
        let named = |change: fn(&mut Needs), words: &[&str]| {
            let mut needs = needs();
            change(&mut needs);
            let difference = needs.check().unwrap_err().to_string();
            assert!(
                words.iter().all(|word| difference.contains(word)),
                "{difference}"
            );
        };
        named(
            |needs| needs.architecture = "riscv64".into(),
            &["riscv64", "x86_64"],
        );
        named(
            |needs| needs.monitor = "other".into(),
            &["`other`", "`kvm`"],
        );
        named(
            |needs| needs.vendor = "GenuineMica".into(),
            &["GenuineMica", &vendor()],
        );
        named(|needs| needs.format = 9999, &["9999", "version of mica"]);
    }

    #[test]
    fn the_leaf_and_the_register_that_differ_are_named() {
        let ours = [[0, 0, 0, 1, 2, 3, 4], [7, 0, 1, 5, 6, 7, 8]];
        assert_eq!(first_difference(&ours, &ours), None);
        let mut theirs = ours;
        theirs[1][4] = 0xff;
        let difference = first_difference(&theirs, &ours).unwrap().to_string();
        assert_eq!(
            difference,
            "CPUID leaf 0x7, index 0, has EBX = 0x000000ff there and 0x00000006 here"
        );
        for (theirs, ours) in [(&ours[..1], &ours[..]), (&ours[..], &ours[..1])] {
            let difference = first_difference(theirs, ours).unwrap().to_string();
            assert_eq!(
                difference,
                "CPUID leaf 0x7, index 0, is there on one of the two only"
            );
        }
    }
}
