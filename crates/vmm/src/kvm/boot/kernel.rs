//! Loads a kernel's file into the guest's memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use linux_loader::bootparam::setup_header;
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::{BzImage, Elf, KernelLoader, KernelLoaderResult};
use vm_memory::{Address, GuestAddress, GuestMemoryMmap};

use super::{Entry, Error};
use crate::kvm::memory::layout;

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// A bzImage's magic number and its offset.
const BZIMAGE_MAGIC: [u8; 4] = *b"HdrS";
const BZIMAGE_MAGIC_AT: u64 = 0x202;

/// `boot_flag` of a kernel's header.
const BOOT_FLAG: u16 = 0xaa55;

/// `XLF_KERNEL_64`: the kernel has a 64-bit entry; and that entry's offset from its start.
const HAS_64_BIT_ENTRY: u16 = 1;
const OFFSET_OF_64_BIT_ENTRY: u64 = 0x200;

/// A loaded kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) entry: Entry,
    /// The first address behind all memory that the kernel needs to begin.
    pub(crate) end: u64,
    /// A bzImage's header, which is passed back to the kernel, or as much of one as an ELF kernel
    /// needs.
    pub(super) header: Option<setup_header>,
}

impl Kernel {
    /// Loads an ELF kernel or a bzImage.
    pub(super) fn load(ram: &GuestMemoryMmap, file: &mut File) -> Result<Self, Error> {
        let magic = |at| {
            let mut bytes = [0; 4];
            file.read_exact_at(&mut bytes, at).map(|()| bytes).ok()
        };
        if magic(0) == Some(ELF_MAGIC) {
            Self::load_elf(ram, file)
        } else if magic(BZIMAGE_MAGIC_AT) == Some(BZIMAGE_MAGIC) {
            Self::load_bzimage(ram, file)
        } else {
            Err(Error::UnknownFormat)
        }
    }

    fn load_elf(ram: &GuestMemoryMmap, file: &mut File) -> Result<Self, Error> {
        let start = GuestAddress(layout::HIGH_RAM);
        let loaded = Elf::load(ram, None, file, Some(start))?;
        // Linux has a 64-bit entry beside PVH's. At PVH's entry it would look for Xen in 256
        // places, each of which costs an exit.
        let own = loaded.kernel_load.raw_value();
        let (entry, header) = match loaded.pvh_boot_cap {
            PvhBootCapability::PvhEntryPresent(pvh) if pvh.raw_value() == own => {
                (Entry::Pvh { address: own }, None)
            }
            _ => {
                let header = setup_header {
                    boot_flag: BOOT_FLAG,
                    header: u32::from_le_bytes(BZIMAGE_MAGIC),
                    ..Default::default()
                };
                (Entry::Linux64 { address: own }, Some(header))
            }
        };
        Ok(Self {
            entry,
            end: loaded.kernel_end,
            header,
        })
    }

    fn load_bzimage(ram: &GuestMemoryMmap, file: &mut File) -> Result<Self, Error> {
        let start = GuestAddress(layout::HIGH_RAM);
        let loaded: KernelLoaderResult = BzImage::load(ram, Some(start), file, Some(start))?;
        let header = loaded.setup_header.ok_or(Error::No64BitEntry)?;
        if header.xloadflags & HAS_64_BIT_ENTRY == 0 {
            return Err(Error::No64BitEntry);
        }
        // The kernel moves itself to its preferred address and needs this much memory there.
        let preferred = header.pref_address;
        let unpacked = preferred.saturating_add(u64::from(header.init_size));
        Ok(Self {
            entry: Entry::Linux64 {
                address: layout::HIGH_RAM + OFFSET_OF_64_BIT_ENTRY,
            },
            end: loaded.kernel_end.max(unpacked),
            header: Some(header),
        })
    }
}
