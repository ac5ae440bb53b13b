//! Writes the structures for the PVH start of an ELF kernel: `hvm_start_info` and what it points
//! to.

use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::elf::start_info::{
    hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::{Error, Initrd, memory_map};
use crate::kvm::memory::layout;

/// `XEN_HVM_START_MAGIC_VALUE`.
const MAGIC: u32 = 0x336e_c578;

/// Writes the description of memory, initrd, command line and ACPI tables for the kernel.
pub(super) fn write(ram: &GuestMemoryMmap, ram_size: u64, initrd: Initrd) -> Result<(), Error> {
    let map: Vec<hvm_memmap_table_entry> = memory_map::pieces(ram_size)
        .iter()
        .map(|piece| hvm_memmap_table_entry {
            addr: piece.start,
            size: piece.size,
            type_: piece.kind,
            reserved: 0,
        })
        .collect();
    let module = hvm_modlist_entry {
        paddr: initrd.address,
        size: initrd.size,
        ..Default::default()
    };
    let info = hvm_start_info {
        magic: MAGIC,
        version: 1,
        nr_modules: 1,
        modlist_paddr: layout::MODULES,
        cmdline_paddr: layout::COMMAND_LINE.start,
        rsdp_paddr: layout::ACPI.start,
        memmap_paddr: layout::MEMORY_MAP,
        memmap_entries: u32::try_from(map.len()).unwrap_or_default(),
        ..Default::default()
    };
    let mut params = BootParams::new(&info, GuestAddress(layout::START_INFO));
    params.set_sections(&map, GuestAddress(layout::MEMORY_MAP));
    params.set_modules(&[module], GuestAddress(layout::MODULES));
    PvhBootConfigurator::write_bootparams(&params, ram)
        .map_err(|error| Error::Describe(error.to_string()))
}
