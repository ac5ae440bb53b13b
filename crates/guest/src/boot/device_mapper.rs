//! The kernel's device mapper: devices of a part of another one (dm-linear), and those whose blocks are checked when they
//! are read (dm-verity).
//!
//! The interface is the kernel's `linux/dm-ioctl.h`, version 4.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;

use micabox_ground::hex;
use micabox_wire::Range;
use rustix::io::Errno;

use crate::errno::last_errno;

/// Bytes of a sector, the unit of tables.
const SECTOR: u64 = 512;
/// Bytes of a block that dm-verity checks, and of one of its tree.
const VERITY_BLOCK: u64 = 4096;

/// Bytes of `struct dm_ioctl`, which begins every request and answer.
const HEADER: usize = 312;
/// Offsets in it: the size of the whole buffer (u32),
const DATA_SIZE: usize = 12;
/// where the targets start (u32),
const DATA_START: usize = 16;
/// how many there are (u32),
const TARGET_COUNT: usize = 20;
/// flags (u32),
const FLAGS: usize = 28;
/// the device's number (u64),
const DEVICE: usize = 40;
/// and its name (128 bytes, NUL at the end).
const NAME: usize = 48;

/// Bytes of `struct dm_target_spec`; its parameters follow as a string.
const TARGET: usize = 40;
/// Offsets in it: first sector (u64), number of sectors (u64), type (16 bytes).
const TARGET_FIRST: usize = 0;
const TARGET_LENGTH: usize = 8;
const TARGET_TYPE: usize = 24;

/// `DM_READONLY_FLAG`.
const READ_ONLY: u32 = 1;

/// `DM_DEV_CREATE`, `DM_TABLE_LOAD`, and `DM_DEV_SUSPEND`, which resumes if its flag is not set:
/// the numbers of `_IOWR(0xfd, n, struct dm_ioctl)`.
#[derive(Clone, Copy)]
enum Request {
    Create = 3,
    Load = 9,
    Resume = 6,
}

/// The path of its control device.
pub const CONTROL: &str = "/dev/mapper/control";

/// The device mapper's control device.
#[derive(Debug)]
pub struct DeviceMapper {
    control: File,
    made: u32,
}

impl DeviceMapper {
    /// Opens the control device.
    pub fn open() -> std::io::Result<Self> {
        let control = File::options().read(true).write(true).open(CONTROL)?;
        Ok(Self { control, made: 0 })
    }

    /// Makes a read-only device of a part of the device at `path`. Returns the new device's kernel
    /// name; its node is in `/dev`.
    pub fn linear(&mut self, path: &str, range: Range) -> rustix::io::Result<String> {
        if range.length == 0
            || !range.offset.is_multiple_of(SECTOR)
            || !range.length.is_multiple_of(SECTOR)
        {
            return Err(Errno::INVAL);
        }
        let parameters = format!("{path} {}", range.offset / SECTOR);
        self.make("linear", range.length / SECTOR, parameters)
    }

    /// Makes a read-only device of the first `blocks` of the device at `path`, each of which is checked when it is read.
    /// The tree is on the device at `tree`, behind a superblock, as `micabox_wire::Device::Verity` says. A block that is
    /// not what it says can't be read: EIO, and nothing else. Returns the new device's kernel name.
    pub fn verity(
        &mut self,
        path: &str,
        tree: &str,
        blocks: u64,
        root: &[u8; 32],
    ) -> rustix::io::Result<String> {
        let sectors = blocks.checked_mul(VERITY_BLOCK / SECTOR);
        let sectors = sectors.filter(|sectors| *sectors > 0).ok_or(Errno::INVAL)?;
        // Version, both devices, sizes of their blocks, number of the former's, the tree's first block, digest, salt.
        let root = hex(root);
        let parameters =
            format!("1 {path} {tree} {VERITY_BLOCK} {VERITY_BLOCK} {blocks} 1 sha256 {root} -");
        self.make("verity", sectors, parameters)
    }

    /// Makes a read-only device of so many sectors, which one target has. Returns the new device's kernel name.
    fn make(
        &mut self,
        target: &str,
        sectors: u64,
        parameters: String,
    ) -> rustix::io::Result<String> {
        let table = table(target, sectors, parameters)?;
        let name = format!("image-{}", self.made);
        let created = self.request(Request::Create, &name, 0, &[])?;
        self.made += 1;
        self.request(Request::Load, &name, READ_ONLY, &table)?;
        self.request(Request::Resume, &name, 0, &[])?;
        let device = created
            .get(DEVICE..DEVICE + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_le_bytes)
            .ok_or(Errno::IO)?;
        // `huge_encode_dev`: the minor's low byte, the major, the minor's rest.
        let minor = (device & 0xff) | ((device >> 12) & 0xfff_ff00);
        Ok(format!("dm-{minor}"))
    }

    fn request(
        &self,
        request: Request,
        name: &str,
        flags: u32,
        target: &[u8],
    ) -> rustix::io::Result<Vec<u8>> {
        let mut buffer = vec![0; HEADER + target.len()];
        let size = u32::try_from(buffer.len()).map_err(|_| Errno::TOOBIG)?;
        put(&mut buffer, 0, &4_u32.to_le_bytes());
        put(&mut buffer, DATA_SIZE, &size.to_le_bytes());
        put(&mut buffer, DATA_START, &(HEADER as u32).to_le_bytes());
        put(
            &mut buffer,
            TARGET_COUNT,
            &u32::from(!target.is_empty()).to_le_bytes(),
        );
        put(&mut buffer, FLAGS, &flags.to_le_bytes());
        put(&mut buffer, NAME, name.as_bytes());
        put(&mut buffer, HEADER, target);
        let number =
            (3 << 30) | ((HEADER as libc::c_ulong) << 16) | (0xfd << 8) | request as libc::c_ulong;
        // SAFETY: the kernel accesses as many bytes of `buffer` as its size field says, which is
        // its length.
        let result =
            unsafe { libc::ioctl(self.control.as_raw_fd(), number as _, buffer.as_mut_ptr()) };
        if result < 0 {
            return Err(last_errno());
        }
        Ok(buffer)
    }
}

/// Returns a table of one line: this target has all sectors of the new device.
fn table(target: &str, sectors: u64, parameters: String) -> rustix::io::Result<Vec<u8>> {
    let parameters = CString::new(parameters).map_err(|_| Errno::INVAL)?;
    let mut line = vec![0; TARGET];
    put(&mut line, TARGET_FIRST, &0_u64.to_le_bytes());
    put(&mut line, TARGET_LENGTH, &sectors.to_le_bytes());
    put(&mut line, TARGET_TYPE, target.as_bytes());
    line.extend_from_slice(parameters.as_bytes_with_nul());
    line.resize(line.len().next_multiple_of(8), 0);
    Ok(line)
}

/// Copies `bytes` to `buffer` at `at`. Does nothing if there is no room; the layout above has room
/// for every field.
fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(field) = buffer.get_mut(at..at + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}
