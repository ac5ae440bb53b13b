//! Reads how much memory the host has.

use std::fs;

/// The host's memory in bytes, from `/proc/meminfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Total memory, swap included: no virtual machine can have more.
    pub most: u64,
    /// Memory available to programs now.
    pub available: u64,
}

impl HostMemory {
    /// Reads the host's memory; None if the kernel does not report it.
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(Self {
            most: field("MemTotal:")?.checked_add(field("SwapTotal:")?)?,
            available: field("MemAvailable:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_memory_is_read_from_the_kernel() {
        let text = "MemTotal:  16 kB\nMemFree: 1 kB\nMemAvailable: 8 kB\nSwapTotal: 4 kB\n";
        let expected = HostMemory {
            most: 20 << 10,
            available: 8 << 10,
        };
        assert_eq!(HostMemory::parse(text), Some(expected));
        assert_eq!(HostMemory::parse("MemTotal: many"), None);
        assert!(HostMemory::now().is_some_and(|now| now.available <= now.most));
    }
}
