//! Features of the host's processor. `/proc/cpuinfo` has them as well, as text for each processor
//! that the kernel needs a while to write.

/// Features of the host's processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags {
    /// Whether the processor can run virtual machines (Intel's `vmx` or AMD's `svm`).
    pub(crate) virtualises: bool,
    /// Whether this machine is a virtual one, as far as its processor says.
    pub(crate) is_virtual: bool,
    /// Whether the time stamp counter's rate is constant in all power states.
    pub(crate) counts_evenly: bool,
}

impl Flags {
    /// Reads the features. See CPUID in Intel's and AMD's manuals: leaf 1, ECX bits 5 (VMX) and 31 (hypervisor); leaf
    /// 8000_0001h, ECX bit 2 (SVM); leaf 8000_0007h, EDX bit 8 (invariant TSC).
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn read() -> Self {
        // SAFETY: every x86-64 has CPUID. Newer compilers than the oldest that will do know that.
        #[allow(unsafe_code, unused_unsafe)]
        let cpuid = |leaf| unsafe { std::arch::x86_64::__cpuid(leaf) };

        const EXTENDED: u32 = 0x8000_0000;
        let most = cpuid(EXTENDED).eax;
        let extended = |leaf| (EXTENDED + leaf <= most).then(|| cpuid(EXTENDED + leaf));
        let first = cpuid(1).ecx;
        let vmx = first & 1 << 5 != 0;
        let svm = extended(1).is_some_and(|leaf| leaf.ecx & 1 << 2 != 0);
        Self {
            virtualises: vmx || svm,
            is_virtual: first & 1 << 31 != 0,
            counts_evenly: extended(7).is_some_and(|leaf| leaf.edx & 1 << 8 != 0),
        }
    }

    /// Assumes none: no other processor is known.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn read() -> Self {
        Self {
            virtualises: false,
            is_virtual: false,
            counts_evenly: false,
        }
    }
}

/// Returns the vendor of the host's processor, by CPUID's leaf 0; empty on another architecture.
#[cfg(target_arch = "x86_64")]
pub(crate) fn vendor() -> String {
    // SAFETY: every x86-64 has CPUID. Newer compilers than the oldest that will do know that.
    #[allow(unsafe_code, unused_unsafe)]
    let leaf = unsafe { std::arch::x86_64::__cpuid(0) };
    vendor_text(leaf.ebx, leaf.ecx, leaf.edx)
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn vendor() -> String {
    String::new()
}

/// Returns the text of a vendor, which is in EBX, EDX and ECX of CPUID's leaf 0, in this order.
#[cfg(target_arch = "x86_64")]
pub(crate) fn vendor_text(ebx: u32, ecx: u32, edx: u32) -> String {
    let bytes = [ebx, edx, ecx].map(u32::to_le_bytes).concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_flags_are_those_of_the_kernel() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
        let has = |flag: &str| flags.is_some_and(|flags| flags.split(' ').any(|word| word == flag));
        let ours = Flags::read();
        assert_eq!(ours.virtualises, has("vmx") || has("svm"));
        assert_eq!(ours.is_virtual, has("hypervisor"));
        // The kernel may know better that the counter of an old machine is not to be trusted.
        assert!(ours.counts_evenly || !(has("constant_tsc") && has("nonstop_tsc")));
    }
}
