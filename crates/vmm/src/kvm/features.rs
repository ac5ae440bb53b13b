//! The first processor's CPUID: of a saved machine, and of one that starts here.

use std::fs::File;

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};

use super::saved::{Saved, VERSION};
use super::vcpu::cpuid;
use crate::cpu::Flags;
use crate::{Lack, host_kvm};

/// Reads the version, the number of processors and the first one's CPUID from a saved machine's state.
///
/// # Errors
/// It is none that this version has saved.
pub(crate) fn read(state: &File) -> Result<(u32, u8, Vec<[u32; 7]>), String> {
    let saved = Saved::read(state).map_err(|error| error.to_string())?;
    let count = u8::try_from(saved.processors.len());
    let count = count.map_err(|_| "it has too many processors".to_owned())?;
    Ok((VERSION, count, saved.features.iter().map(fields).collect()))
}

/// Returns the CPUID of the first of `count` processors of a machine that starts here.
///
/// # Errors
/// Why KVM does not work.
pub(crate) fn here(count: u8) -> Result<Vec<[u32; 7]>, Lack> {
    let kvm = host_kvm::look(&Flags::read())?;
    let supported = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(|error| Lack::new(format!("it does not say what its processors have: {error}")))?;
    let all = cpuid::of_processor(&supported, 0, count, false);
    let all = all.ok_or_else(|| Lack::new("its processors have too many features"))?;
    Ok(all.as_slice().iter().map(fields).collect())
}

fn fields(entry: &kvm_cpuid_entry2) -> [u32; 7] {
    let kvm_cpuid_entry2 {
        function,
        index,
        flags,
        eax,
        ebx,
        ecx,
        edx,
        ..
    } = *entry;
    [function, index, flags, eax, ebx, ecx, edx]
}
