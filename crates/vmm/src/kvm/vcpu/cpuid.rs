//! What a guest's processor says that it can do: what KVM supports here, with the
//! machine's own topology.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// What KVM would have us add: it emulates the timer whatever the processor has, and
/// the guest must know that it is one.
const LEAF_1_ECX: u32 = 1 << 24 /* TSC-deadline timer */ | 1 << 31 /* hypervisor */;

/// Leaf 0xb: a level's kind, in ECX.
const THREADS: u32 = 1 << 8;
const CORES: u32 = 2 << 8;

/// `supported` by KVM, for processor `id` of `count` in one package, a thread a core.
pub(crate) fn of_processor(supported: &CpuId, id: u8, count: u8) -> Option<CpuId> {
    let entries = supported.as_slice().iter();
    // Intel's topology is made anew: how many levels KVM reports depends on the host.
    let mut entries: Vec<kvm_cpuid_entry2> = entries
        .filter(|entry| !matches!(entry.function, 0xb | 0x1f))
        .copied()
        .collect();
    for entry in &mut entries {
        adapt(entry, id, count);
    }
    entries.extend(topology(id, count));
    CpuId::from_entries(&entries).ok()
}

/// Bits of an APIC ID that number `count` cores.
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
        // Caches: those of a core are its own, the last level is everybody's.
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

/// The first physical address that the guest's processors can't name.
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
    fn every_processor_knows_its_place() {
        let mut sizes = entry(0x8000_0008);
        sizes.eax = 40;
        let supported = CpuId::from_entries(&[entry(1), sizes, entry(0xb), entry(0x8000_001e)]);
        let supported = supported.unwrap();
        assert_eq!(address_limit(&supported), 1 << 40);
        let third = of_processor(&supported, 2, 6).unwrap();
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

        let only = of_processor(&supported, 0, 1).unwrap();
        assert_eq!(find(&only, 1, 0).edx, 0);
        assert_eq!(find(&only, 0xb, 1).eax, 0);
    }
}
