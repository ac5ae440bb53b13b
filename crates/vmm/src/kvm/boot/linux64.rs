//! Writes the structures for a kernel's 64-bit start: `boot_params`, a descriptor table and page
//! tables.

use linux_loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::{Error, Initrd, memory_map};
use crate::kvm::memory::layout;

/// `type_of_loader` of a loader without an assigned number.
const UNKNOWN_LOADER: u8 = 0xff;

/// Null, null, 64-bit code, data: the selectors that the boot protocol requires.
const DESCRIPTORS: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Page table entries: present and writable. A page of 1 GiB needs support by the processor, one of
/// 2 MiB does not.
const TABLE: u64 = 0x03;
const LARGE_PAGE: u64 = 0x83;

/// Writes the description of memory, initrd, command line and ACPI tables for the kernel.
pub(super) fn write(
    ram: &GuestMemoryMmap,
    ram_size: u64,
    header: setup_header,
    initrd: Initrd,
    command_line: usize,
) -> Result<(), Error> {
    let mut params = boot_params {
        hdr: header,
        acpi_rsdp_addr: layout::ACPI.start,
        ..Default::default()
    };
    params.hdr.type_of_loader = UNKNOWN_LOADER;
    // All of these lie below 4 GiB.
    params.hdr.cmd_line_ptr = layout::COMMAND_LINE.start as u32;
    params.hdr.cmdline_size = u32::try_from(command_line).unwrap_or_default();
    params.hdr.ramdisk_image = initrd.address as u32;
    params.hdr.ramdisk_size = u32::try_from(initrd.size).unwrap_or_default();
    let map = memory_map::pieces(ram_size);
    params.e820_entries = u8::try_from(map.len()).unwrap_or_default();
    for (entry, piece) in params.e820_table.iter_mut().zip(map) {
        *entry = boot_e820_entry {
            addr: piece.start,
            size: piece.size,
            r#type: piece.kind,
        };
    }
    ram.write_obj(params, GuestAddress(layout::ZERO_PAGE))?;
    for (descriptor, at) in DESCRIPTORS.iter().zip((layout::GDT..).step_by(8)) {
        ram.write_obj(*descriptor, GuestAddress(at))?;
    }
    page_tables(ram)
}

/// Maps the first GiB one to one: kernel, initrd and everything written here.
fn page_tables(ram: &GuestMemoryMmap) -> Result<(), Error> {
    const PAGE: u64 = 0x1000;
    const LARGE: u64 = 2 << 20;
    const ENTRIES: u64 = 512;
    let [level4, level3, level2] = [0, 1, 2].map(|page| layout::PAGE_TABLES + page * PAGE);
    ram.write_obj(level3 | TABLE, GuestAddress(level4))?;
    ram.write_obj(level2 | TABLE, GuestAddress(level3))?;
    for index in 0..ENTRIES {
        let entry = (index * LARGE) | LARGE_PAGE;
        ram.write_obj(entry, GuestAddress(level2 + index * 8))?;
    }
    Ok(())
}
