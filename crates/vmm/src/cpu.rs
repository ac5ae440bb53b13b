//! Features of the host's processor, as its kernel reports them.

use std::fs::File;
use std::io::Read;

/// Bytes of `/proc/cpuinfo` that hold the first processor: one takes some 2 KiB, and a big host has
/// hundreds.
const FIRST_PROCESSOR: u64 = 16 << 10;

/// The first processor's flags.
#[derive(Clone, Debug)]
pub(crate) struct Flags(Vec<String>);

impl Flags {
    /// Reads the flags; none where the kernel does not show any.
    pub(crate) fn read() -> Self {
        let mut text = Vec::new();
        if let Ok(file) = File::open("/proc/cpuinfo") {
            let _ = file.take(FIRST_PROCESSOR).read_to_end(&mut text);
        }
        Self::parse(&String::from_utf8_lossy(&text))
    }

    fn parse(cpuinfo: &str) -> Self {
        let flags = cpuinfo
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == "flags")
            .map_or("", |(_, flags)| flags);
        Self(flags.split_ascii_whitespace().map(str::to_owned).collect())
    }

    /// Returns whether the processor can run virtual machines.
    pub(crate) fn virtualise(&self) -> bool {
        self.has("vmx") || self.has("svm")
    }

    /// Returns whether the time stamp counter's rate is constant in all power states.
    pub(crate) fn count_evenly(&self) -> bool {
        self.has("constant_tsc") && self.has("nonstop_tsc")
    }

    fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|known| known == flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_flags_of_the_processor_count() {
        let virtualises = |text| Flags::parse(text).virtualise();
        assert!(virtualises("processor\t: 0\nflags\t\t: fpu vme svm de\n"));
        assert!(virtualises("flags : vmx"));
        assert!(!virtualises(
            "vmx flags\t: vnmi\nflags\t\t: fpu hypervisor svm_lock\nbugs : vmx\n"
        ));
        assert!(!virtualises(""));
        assert!(Flags::parse("flags: nonstop_tsc constant_tsc").count_evenly());
        assert!(!Flags::parse("flags: constant_tsc").count_evenly());
    }
}
