//! The size and the limits of a machine, and what runs it.

use serde::{Deserialize, Serialize};

/// Default RAM for the sandbox's programs and files, MiB. Memory that a guest does not touch costs
/// the host nothing.
pub const DEFAULT_MEMORY_MIB: u32 = 1024;

/// Most virtual processors of a machine.
const MOST_CPUS: u8 = 64;

/// Fewest MiB of a machine's memory.
const LEAST_MEMORY: u32 = 64;

/// Fewest thousandths of a processor that a machine's process may use.
const LEAST_QUOTA: u32 = 10;

/// The size and the limits of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Guest RAM in MiB, at least 64.
    pub memory_mib: u32,
    /// Virtual processors, 1 to 64; None for as many as the backend gives by default.
    pub cpus: Option<u8>,
    /// Thousandths of a processor that the machine's process may use, where a control group can
    /// limit it; at least 10. None for what its virtual processors and one more thread can use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<u32>,
    /// What limits the traffic of each disk.
    #[serde(skip_serializing_if = "DiskRate::is_unlimited")]
    pub disk_rate: DiskRate,
    /// Whether the guest may run virtual machines itself, and use performance counters. Both expose
    /// large parts of the host's kernel to a guest that may be hostile. Such a machine can't be
    /// saved.
    pub nested_virtualization: bool,
    /// Whether the machine must not start without a control group that limits its process.
    pub require_limits: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            memory_mib: DEFAULT_MEMORY_MIB,
            cpus: None,
            cpu_quota: None,
            disk_rate: DiskRate::default(),
            nested_virtualization: false,
            require_limits: false,
        }
    }
}

/// A size that no machine can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The number of virtual processors.
    #[error("a machine has 1 to {MOST_CPUS} virtual processors")]
    Cpus,
    /// The processor time.
    #[error("less than a hundredth of a processor")]
    Quota,
    /// The memory, in MiB.
    #[error("{0} MiB of memory are not enough to boot; give at least {LEAST_MEMORY} MiB")]
    Memory(u32),
}

impl Machine {
    /// Checks the size.
    ///
    /// # Errors
    /// [`SizeError`].
    pub fn check(&self) -> Result<(), SizeError> {
        let range = 1..=MOST_CPUS;
        if self.cpus.is_some_and(|cpus| !range.contains(&cpus)) {
            return Err(SizeError::Cpus);
        }
        if self.cpu_quota.is_some_and(|quota| quota < LEAST_QUOTA) {
            return Err(SizeError::Quota);
        }
        if self.memory_mib < LEAST_MEMORY {
            return Err(SizeError::Memory(self.memory_mib));
        }
        Ok(())
    }

    /// Returns the settings of a copy of the machine that was saved with these.
    pub(crate) fn copied(&self) -> Self {
        let Self {
            memory_mib,               // the same memory
            cpus,                     // the same processors
            cpu_quota,                // a limit of what runs
            disk_rate,                // a limit of what runs
            nested_virtualization: _, // such a machine is not saved
            require_limits,           // or else a copy would run without the limits
        } = *self;
        Self {
            memory_mib,
            cpus,
            cpu_quota,
            disk_rate,
            require_limits,
            ..Self::default()
        }
    }

    /// Returns the settings of a machine that runs: these, as its record has them now, with what its own start was asked for.
    #[must_use]
    pub fn started(self, asked: &Self) -> Self {
        Self {
            require_limits: asked.require_limits,
            ..self
        }
    }

    /// Returns the part of a template's settings that is about its machine. `cpus` is the number of processors where none
    /// was asked for.
    pub(crate) fn in_template(&self, cpus: u8) -> impl Serialize + use<> {
        let Self {
            memory_mib,
            cpus: wanted,
            cpu_quota: _,             // limits a process, and not what is in it
            disk_rate: _,             // limits a process
            nested_virtualization: _, // such a machine has no template
            require_limits: _,        // limits a process
        } = *self;
        InTemplate {
            cpus: wanted.unwrap_or(cpus),
            memory: memory_mib,
        }
    }

    /// Returns whether a machine that a pool has started before from the same template can be given to a sandbox with
    /// these settings.
    pub(crate) fn can_be_pooled(&self) -> bool {
        let Self {
            memory_mib: _, // in the template
            cpus: _,
            cpu_quota,                // its process is limited before
            disk_rate,                // its disks are limited before
            nested_virtualization: _, // has no template
            require_limits,           // the pool's machines need none
        } = *self;
        !require_limits && cpu_quota.is_none() && disk_rate.is_unlimited()
    }
}

/// The settings of a template's machine.
#[derive(Serialize)]
struct InTemplate {
    cpus: u8,
    memory: u32,
}

/// Limits of the traffic between the guest and each of its disks. Requests beyond them wait. pmem is
/// memory, and not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskRate {
    /// Bytes that are read in a second.
    pub read: Option<u64>,
    /// Bytes that are written in a second.
    pub write: Option<u64>,
    /// Requests of any kind in a second.
    pub operations: Option<u64>,
}

impl DiskRate {
    fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

/// Which backend to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// Ours where KVM works, QEMU elsewhere.
    #[default]
    Auto,
    /// Ours, on KVM.
    Kvm,
    /// QEMU, which emulates where KVM does not work.
    Qemu,
    /// No machine: a container on this machine's own kernel. Never chosen by itself.
    Host,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine with no setting as it is by default.
    pub(crate) fn all_set() -> Machine {
        Machine {
            memory_mib: 77,
            cpus: Some(3),
            cpu_quota: Some(500),
            disk_rate: DiskRate {
                operations: Some(9),
                ..DiskRate::default()
            },
            nested_virtualization: true,
            require_limits: true,
        }
    }

    type Change = fn(&mut Machine, Machine);

    /// Those that are in a template.
    pub(crate) const IN_TEMPLATE: &[Change] = &[
        |machine, all| machine.memory_mib = all.memory_mib,
        |machine, all| machine.cpus = all.cpus,
    ];

    /// Those that limit a process, and so are set before a pool's machine starts.
    pub(crate) const OF_PROCESS: &[Change] = &[
        |machine, all| machine.cpu_quota = all.cpu_quota,
        |machine, all| machine.disk_rate = all.disk_rate,
        |machine, all| machine.require_limits = all.require_limits,
    ];

    #[test]
    fn a_copy_has_all_settings_of_a_machine_that_can_be_saved() {
        let machine = Machine {
            nested_virtualization: false,
            ..all_set()
        };
        assert_eq!(all_set().copied(), machine);
    }

    #[test]
    fn every_setting_is_in_a_template_or_of_a_process() {
        let mut machine = Machine::default();
        for change in IN_TEMPLATE.iter().chain(OF_PROCESS) {
            change(&mut machine, all_set());
        }
        machine.nested_virtualization = true;
        assert_eq!(machine, all_set());
    }
}
