//! Prepares a guest's boot: loads kernel, initrd and command line, and writes the structures that
//! describe them to the kernel.

mod kernel;
mod linux64;
mod memory_map;
mod pvh;

use std::fs::File;
use std::io::{Seek, SeekFrom};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub(crate) use kernel::Kernel;

use super::memory::layout;

/// The first processor's entry point and mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// At the PVH entry of an ELF kernel that has no other, in 32-bit mode.
    Pvh {
        /// Address of the first instruction.
        address: u64,
    },
    /// At the 64-bit entry of Linux.
    Linux64 {
        /// Address of the first instruction.
        address: u64,
    },
}

/// Where the initrd is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Initrd {
    address: u64,
    size: u64,
}

/// Why a guest can't be booted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the kernel is neither an ELF file nor a bzImage")]
    UnknownFormat,
    #[error("the kernel can't be loaded: {0}")]
    Load(#[from] linux_loader::loader::Error),
    #[error("the kernel has no 64-bit entry")]
    No64BitEntry,
    #[error("kernel and initrd don't fit into the memory: give the machine more than {} MiB", size >> 20)]
    NoRoom { size: u64 },
    #[error("the kernel's command line has {0} bytes, too many")]
    CommandLine(usize),
    #[error("reading the kernel or its initrd: {0}")]
    Read(#[from] std::io::Error),
    #[error("describing the machine to the kernel: {0}")]
    Describe(String),
    #[error("writing to the guest's memory: {0}")]
    Write(#[from] vm_memory::GuestMemoryError),
}

/// Writes all that the guest needs to its memory; `acpi` are the tables.
pub(crate) fn prepare(
    ram: &GuestMemoryMmap,
    ram_size: u64,
    kernel: &mut File,
    initrd: &mut File,
    command_line: &str,
    acpi: &[u8],
) -> Result<Entry, Error> {
    let kernel = Kernel::load(ram, kernel)?;
    let initrd = load_initrd(ram, ram_size, initrd, kernel.end)?;
    write_command_line(ram, command_line)?;
    ram.write_slice(acpi, GuestAddress(layout::ACPI.start))?;
    match kernel.entry {
        Entry::Pvh { .. } => pvh::write(ram, ram_size, initrd)?,
        Entry::Linux64 { .. } => {
            let header = kernel.header.ok_or(Error::No64BitEntry)?;
            linux64::write(ram, ram_size, header, initrd, command_line.len())?;
        }
    }
    Ok(kernel.entry)
}

/// Loads the initrd as high as every kernel accepts it, so that the memory behind the kernel is
/// free for the kernel.
fn load_initrd(
    ram: &GuestMemoryMmap,
    ram_size: u64,
    file: &mut File,
    kernel_end: u64,
) -> Result<Initrd, Error> {
    /// `initrd_addr_max` of x86 kernels.
    const HIGHEST: u64 = 0x37ff_ffff;
    const PAGE: u64 = 4096;
    let size = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let end = ram_size.min(HIGHEST);
    let address = end.checked_sub(size).map(|start| start / PAGE * PAGE);
    // A kernel unpacks itself next to its load address and needs room beyond the contents of its
    // file.
    let Some(address) = address.filter(|address| *address >= kernel_end) else {
        return Err(Error::NoRoom { size: ram_size });
    };
    let count = usize::try_from(size).unwrap_or(usize::MAX);
    ram.read_exact_volatile_from(GuestAddress(address), file, count)?;
    Ok(Initrd { address, size })
}

fn write_command_line(ram: &GuestMemoryMmap, text: &str) -> Result<(), Error> {
    /// `COMMAND_LINE_SIZE` of x86 kernels, its final zero included.
    const MAX: usize = 2048;
    if text.len() >= MAX {
        return Err(Error::CommandLine(text.len()));
    }
    let start = GuestAddress(layout::COMMAND_LINE.start);
    ram.write_slice(text.as_bytes(), start)?;
    let end = GuestAddress(layout::COMMAND_LINE.start + text.len() as u64);
    Ok(ram.write_slice(&[0], end)?)
}
