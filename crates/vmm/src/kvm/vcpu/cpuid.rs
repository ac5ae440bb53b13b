//! CPUID of a guest's processors: what KVM supports on this host, with the machine's own topology.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// Bits that KVM leaves to the monitor: KVM emulates the timer on any processor, and the guest must
/// know that it runs under a hypervisor.
const LEAF_1_ECX: u32 = 1 << 24 /* TSC-deadline timer */ | 1 << 31 /* hypervisor */;

/// Leaf 0xb: a level's kind, in ECX.
const THREADS: u32 = 1 << 8;
const CORES: u32 = 2 << 8;

/// Leaf 1, ECX: Intel's virtualisation. Leaf 0x8000_0001, ECX: AMD's.
const VMX: u32 = 1 << 5;
const SVM: u32 = 1 << 2;

/// Leaf 0x8000_0001, ECX: AMD's performance counters, of the core, of the north bridge and of the
/// last cache. Leaf 1, ECX: the capabilities of Intel's.
const AMD_COUNTERS: u32 = 1 << 23 | 1 << 24 | 1 << 28;
const PDCM: u32 = 1 << 15;

/// Leaf 7, EDX: records of branches (architectural LBR, leaf 0x1c).
const ARCH_LBR: u32 = 1 << 19;

/// Hides nested virtualisation and performance counters, each a large part of the host's kernel
/// that few guests need. The guest's kernel then uses neither.
///
/// Source: Intel's SDM, volume 2, CPUID; AMD's APM, volume 3, appendix E.
fn mask(entry: &mut kvm_cpuid_entry2) {
    match entry.function {
        1 => entry.ecx &= !(VMX | PDCM),
        7 if entry.index == 0 => entry.edx &= !ARCH_LBR,
        0x8000_0001 => entry.ecx &= !(SVM | AMD_COUNTERS),
        // Counters: Intel's, branch records, extended Intel's, AMD's; and AMD's virtualisation.
        0xa | 0x1c | 0x23 | 0x8000_000a | 0x8000_0022 => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
        }
        _ => {}
    }
}

/// Returns the CPUID of processor `id` of `count` in one package, a thread a core, from what KVM
/// has as `supported`. Without virtualisation and performance counters, unless the machine may run
/// virtual machines itself (`is_host`).
pub(crate) fn of_processor(supported: &CpuId, id: u8, count: u8, is_host: bool) -> Option<CpuId> {
    // Intel's topology is replaced: the number of levels that KVM reports depends on the host.
    let mut entries: Vec<kvm_cpuid_entry2> = supported
        .as_slice()
        .iter()
        .filter(|entry| !matches!(entry.function, 0xb | 0x1f))
        .copied()
        .collect();
    for entry in &mut entries {
        if !is_host {
            mask(entry);
        }
        adapt(entry, id, count);
    }
    entries.extend(topology(id, count));
    CpuId::from_entries(&entries).ok()
}

/// Returns how many bits of an APIC ID number `count` cores.
fn core_bits(count: u8) -> u32 {
    u32::from(count).next_power_of_two().trailing_zeros()
}

fn adapt(entry: &mut kvm_cpuid_entry2, id: u8, count: u8) {
    let (id, count) = (u32::from(id), u32::from(count));
    let last = count.saturating_sub(1);
    match entry.function {
        1 => {
            entry.ecx |= LEAF_1_ECX;
            entry.ebx = entry.ebx & 0x0000_ffff | count << 16 | id << 24;
            // More than one processor in the package: the count above is valid.
            let several = 1 << 28;
            entry.edx = match count {
                1 => entry.edx & !several,
                _ => entry.edx | several,
            };
        }
        // Caches: a core does not share its own, and all cores share the last level.
        4 => {
            let shared = if entry.eax >> 5 & 7 >= 3 { last } else { 0 };
            entry.eax = entry.eax & 0x3fff | shared << 14 | last << 26;
        }
        // AMD: number of cores, and bits of the APIC ID that number them.
        0x8000_0008 => entry.ecx = last & 0xff | core_bits(count as u8) << 12,
        // AMD: extended APIC ID; a thread a core, one node.
        0x8000_001e => {
            entry.eax = id;
            entry.ebx = id;
            entry.ecx = 0;
        }
        _ => {}
    }
}

fn topology(id: u8, count: u8) -> [kvm_cpuid_entry2; 2] {
    let level = |index, shift, processors, kind: u32| kvm_cpuid_entry2 {
        function: 0xb,
        index,
        flags: kvm_bindings::KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: shift,
        ebx: processors,
        ecx: kind | index,
        edx: id.into(),
        ..Default::default()
    };
    [
        level(0, 0, 1, THREADS),
        level(1, core_bits(count), count.into(), CORES),
    ]
}

/// Returns the first physical address that the guest's processors can't use.
pub(crate) fn address_limit(supported: &CpuId) -> u64 {
    let entries = supported.as_slice().iter();
    let bits = entries
        .filter(|entry| entry.function == 0x8000_0008)
        .map(|entry| entry.eax & 0xff)
        .next()
        .unwrap_or(36);
    1_u64.checked_shl(bits).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 {
            function,
            ..Default::default()
        }
    }

    fn find(cpuid: &CpuId, function: u32, index: u32) -> kvm_cpuid_entry2 {
        let mut entries = cpuid.as_slice().iter();
        *entries
            .find(|entry| entry.function == function && entry.index == index)
            .unwrap()
    }

    #[test]
    fn virtualisation_and_counters_are_for_hosts_only() {
        let full = |function| kvm_cpuid_entry2 {
            eax: u32::MAX,
            ebx: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..entry(function)
        };
        let leaves = [1, 7, 0xa, 0x1c, 0x23, 0x8000_0001, 0x8000_000a, 0x8000_0022];
        let supported = CpuId::from_entries(&leaves.map(full)).unwrap();
        let masked = of_processor(&supported, 0, 1, false).unwrap();
        let whole = of_processor(&supported, 0, 1, true).unwrap();
        // All bits except those with these numbers.
        let without = |bits: &[u32]| bits.iter().fold(u32::MAX, |all, bit| all & !(1 << bit));
        assert_eq!(find(&masked, 1, 0).ecx, without(&[5, 15]));
        assert_eq!(find(&masked, 7, 0).edx, without(&[19]));
        assert_eq!(find(&masked, 0x8000_0001, 0).ecx, without(&[2, 23, 24, 28]));
        assert_eq!(find(&whole, 1, 0).ecx, u32::MAX);
        assert_eq!(find(&whole, 0x8000_0001, 0).ecx, u32::MAX);
        for function in [0xa, 0x1c, 0x23, 0x8000_000a, 0x8000_0022] {
            let leaf = find(&masked, function, 0);
            assert_eq!((leaf.eax, leaf.ebx, leaf.ecx, leaf.edx), (0, 0, 0, 0));
            assert_eq!(find(&whole, function, 0).edx, u32::MAX);
        }
    }

    #[test]
    fn every_processor_knows_its_place() {
        let mut sizes = entry(0x8000_0008);
        sizes.eax = 40;
        let supported = CpuId::from_entries(&[entry(1), sizes, entry(0xb), entry(0x8000_001e)]);
        let supported = supported.unwrap();
        assert_eq!(address_limit(&supported), 1 << 40);
        let third = of_processor(&supported, 2, 6, false).unwrap();
        let leaf = find(&third, 1, 0);
        assert_eq!(leaf.ebx, 2 << 24 | 6 << 16);
        assert_eq!(leaf.ecx & LEAF_1_ECX, LEAF_1_ECX);
        assert_eq!(leaf.edx, 1 << 28);
        assert_eq!(find(&third, 0xb, 1).eax, 3);
        assert_eq!(find(&third, 0xb, 1).ebx, 6);
        assert_eq!(find(&third, 0xb, 0).edx, 2);
        assert_eq!(find(&third, 0x8000_0008, 0).ecx, 3 << 12 | 5);
        assert_eq!(find(&third, 0x8000_001e, 0).eax, 2);
        let topologies = third.as_slice().iter();
        assert_eq!(topologies.filter(|entry| entry.function == 0xb).count(), 2);

        let only = of_processor(&supported, 0, 1, false).unwrap();
        assert_eq!(find(&only, 1, 0).edx, 0);
        assert_eq!(find(&only, 0xb, 1).eax, 0);
    }
}
