//! The layout of the guest's physical address space.
//!
//! ```text
//! 0x0000_0000   RAM: boot structures below 0x9fc00, the kernel from 1 MiB on
//! 0x000e_0000   ACPI tables, up to 1 MiB, whose last page is the generation's
//! 0xc000_0000   no RAM from here to 4 GiB: virtio-mmio, I/O APIC, local APIC, KVM's pages
//! 0x1_0000_0000 the rest of the RAM
//! next GiB      pmem regions, each at a multiple of 1 GiB
//! ```

use std::ops::Range;

/// Global descriptor table of the 64-bit entry.
pub(crate) const GDT: u64 = 0x500;
/// `hvm_start_info` of the PVH entry, its modules and its memory map.
pub(crate) const START_INFO: u64 = 0x6000;
pub(crate) const MODULES: u64 = 0x6100;
pub(crate) const MEMORY_MAP: u64 = 0x6200;
/// `boot_params`, one page, of the 64-bit entry.
pub(crate) const ZERO_PAGE: u64 = 0x7000;
/// Three pages of page tables of the 64-bit entry.
pub(crate) const PAGE_TABLES: u64 = 0x9000;
/// The range for the kernel's command line.
pub(crate) const COMMAND_LINE: Range<u64> = 0x2_0000..0x2_1000;
/// End of the RAM that a PC's BIOS would leave.
pub(crate) const LOW_RAM_END: u64 = 0x9_fc00;
/// The range for the ACPI tables, which the memory map reserves.
pub(crate) const ACPI: Range<u64> = 0xe_0000..0x10_0000;
/// The end of the ACPI tables, where the page of the machine's generation ID begins.
pub(crate) const GENERATION: u64 = ACPI.end - 0x1000;
/// The start of ordinary RAM.
pub(crate) const HIGH_RAM: u64 = 0x10_0000;

/// Addresses below 4 GiB that are not RAM.
pub(crate) const HOLE: Range<u64> = 0xc000_0000..0x1_0000_0000;
/// virtio-mmio devices, [`VIRTIO_SIZE`] bytes each.
pub(crate) const VIRTIO: u64 = 0xd000_0000;
pub(crate) const VIRTIO_SIZE: u64 = 0x1000;
pub(crate) const IO_APIC: u32 = 0xfec0_0000;
pub(crate) const LOCAL_APIC: u32 = 0xfee0_0000;
/// One page and three pages that KVM needs on Intel's processors.
pub(crate) const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;
pub(crate) const KVM_TSS: usize = 0xfffb_d000;

/// Alignment of a pmem region: far more than the kernel requires, so that a region shares none of
/// its memory sections with RAM or another region.
const PMEM_ALIGNMENT: u64 = 1 << 30;

/// Returns the ranges of `size` bytes of RAM, one or two.
pub(crate) fn ram(size: u64) -> Vec<Range<u64>> {
    let low = 0..size.min(HOLE.start);
    let high = HOLE.end..HOLE.end.saturating_add(size - low.end);
    [low, high]
        .into_iter()
        .filter(|range| !range.is_empty())
        .collect()
}

/// Returns the ranges of pmem regions of `sizes` bytes, with `ram_size` bytes of RAM. None if they
/// don't fit below `limit`, the first address that the processor can't use.
pub(crate) fn pmem(ram_size: u64, sizes: &[u64], limit: u64) -> Option<Vec<Range<u64>>> {
    let ram_end = ram(ram_size).last()?.end;
    let mut next = ram_end.max(HOLE.end);
    let mut regions = Vec::with_capacity(sizes.len());
    for size in sizes {
        let start = next.checked_next_multiple_of(PMEM_ALIGNMENT)?;
        let end = start.checked_add(*size)?;
        regions.push(start..end);
        next = end;
    }
    (next <= limit).then_some(regions)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // They are lists of ranges.
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn ram_leaves_the_hole_out() {
        assert_eq!(ram(128 * MIB), [0..128 * MIB]);
        assert_eq!(ram(3 * GIB), [0..3 * GIB]);
        assert_eq!(ram(3 * GIB + MIB), [0..3 * GIB, 4 * GIB..4 * GIB + MIB]);
        assert_eq!(ram(64 * GIB), [0..3 * GIB, 4 * GIB..65 * GIB]);
    }

    #[test]
    fn regions_follow_the_ram_and_do_not_touch() {
        let limit = 1 << 40;
        assert_eq!(pmem(GIB, &[], limit), Some(Vec::new()));
        assert_eq!(
            pmem(GIB, &[2 * MIB, GIB + 2 * MIB, 2 * MIB], limit).unwrap(),
            [
                4 * GIB..4 * GIB + 2 * MIB,
                5 * GIB..6 * GIB + 2 * MIB,
                7 * GIB..7 * GIB + 2 * MIB
            ]
        );
        assert_eq!(
            pmem(8 * GIB + MIB, &[2 * MIB], limit).unwrap(),
            [10 * GIB..10 * GIB + 2 * MIB]
        );
        assert_eq!(pmem(GIB, &[1 << 40], limit), None);
        assert_eq!(pmem(GIB, &[u64::MAX - 1, u64::MAX], limit), None);
    }
}
