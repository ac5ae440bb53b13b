//! Finding devices by what they are, never by name or order.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use micabox_wire::{BootFailed, Device, Extent, Range};

use super::device_mapper::DeviceMapper;
use super::step::failed;
use super::{Step, wait_for};

/// Offset of the superblock of EROFS and of ext4, bytes.
const SUPERBLOCK: u64 = 1024;

/// What superblocks are known by, where in them, and where their UUID is.
const SUPERBLOCKS: [(usize, &[u8], usize); 2] = [
    // `EROFS_SUPER_MAGIC_V1`, little endian.
    (0, &0xE0F5_E1E2_u32.to_le_bytes(), 48),
    // `EXT4_SUPER_MAGIC`, little endian.
    (0x38, &0xEF53_u16.to_le_bytes(), 0x68),
];

/// The machine's devices, as far as they have been asked for.
#[derive(Debug, Default)]
pub struct Devices {
    /// Kernel names by UUID.
    pmem: BTreeMap<[u8; 16], String>,
    mapper: Option<DeviceMapper>,
}

/// A block device that an extent stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// `/dev/pmem0`.
    pub path: String,
    /// The image on it is mapped, not copied through the page cache.
    pub dax: bool,
}

impl Devices {
    /// The block device for `extent`.
    pub fn get(&mut self, extent: &Extent) -> Result<BlockDevice, BootFailed> {
        let (mut name, dax) = match &extent.device {
            Device::Pmem { uuid } => (self.pmem(uuid)?, true),
            Device::Disk { serial } => (disk(serial)?, false),
        };
        if let Some(range) = extent.range {
            name = self.piece(name, range)?;
        }
        // EROFS would do without DAX and merely log it; the host asked for DAX.
        if dax && read_sysfs(&format!("/sys/block/{name}/queue/dax")) != "1" {
            return Err(failed(
                "use DAX",
                &format!("/dev/{name}"),
                0,
                "the kernel does not offer DAX on this device",
            ));
        }
        Ok(BlockDevice {
            path: format!("/dev/{name}"),
            dax,
        })
    }

    fn pmem(&mut self, uuid: &[u8; 16]) -> Result<String, BootFailed> {
        let found = wait_for(|| {
            if !self.pmem.contains_key(uuid) {
                self.scan_pmem();
            }
            self.pmem.get(uuid).cloned()
        });
        found.ok_or_else(|| {
            let detail = match block_devices("pmem").as_slice() {
                [] => "no persistent memory is attached".to_owned(),
                names => format!("not at the start of any of: {}", names.join(", ")),
            };
            failed(
                "find the image",
                &format!("pmem, UUID {}", hex(uuid)),
                0,
                &detail,
            )
        })
    }

    fn scan_pmem(&mut self) {
        for name in block_devices("pmem") {
            if self.pmem.values().any(|known| *known == name) {
                continue;
            }
            // What can't be read yet may be there the next time.
            if let Some(uuid) = uuid_at(&format!("/dev/{name}")) {
                self.pmem.insert(uuid, name);
            }
        }
    }

    /// A new device for `range` of device `name`. Every mount needs one of its own: EROFS
    /// takes no device that is mounted already as a device of another image.
    fn piece(&mut self, name: String, range: Range) -> Result<String, BootFailed> {
        let target = format!("/dev/{name}, {} bytes at {}", range.length, range.offset);
        let mapper = match &mut self.mapper {
            Some(mapper) => mapper,
            None => self.mapper.insert(
                DeviceMapper::open().step("open the device mapper", "/dev/mapper/control")?,
            ),
        };
        mapper
            .linear(&format!("/dev/{name}"), range)
            .step("map a piece of a device", target)
    }
}

/// The kernel name of the virtio block device with this serial number.
pub fn disk(serial: &str) -> Result<String, BootFailed> {
    wait_for(|| {
        block_devices("vd")
            .into_iter()
            .find(|name| read_sysfs(&format!("/sys/block/{name}/serial")) == serial)
    })
    .ok_or_else(|| {
        let serials: Vec<_> = block_devices("vd")
            .iter()
            .map(|name| read_sysfs(&format!("/sys/block/{name}/serial")))
            .collect();
        let detail = format!("attached are: {serials:?}");
        failed(
            "find the disk",
            &format!("serial number {serial}"),
            0,
            &detail,
        )
    })
}

fn block_devices(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

fn read_sysfs(path: &str) -> String {
    let contents = fs::read_to_string(path).unwrap_or_default();
    contents.trim_end().to_owned()
}

/// The UUID of the filesystem in the file or device at `path`.
fn uuid_at(path: &str) -> Option<[u8; 16]> {
    let mut superblock = [0; 128];
    File::open(path)
        .and_then(|file| file.read_exact_at(&mut superblock, SUPERBLOCK))
        .ok()?;
    let is_at = |at: usize, magic: &[u8]| superblock.get(at..at + magic.len()) == Some(magic);
    let known = SUPERBLOCKS.iter().find(|(at, magic, _)| is_at(*at, magic));
    let (_, _, uuid) = known?;
    superblock.get(*uuid..*uuid + 16)?.try_into().ok()
}

/// A UUID as `dump.erofs` prints it, without dashes.
fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_uuid() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(uuid_at(path), None);
        let mut image = vec![0; 4096];
        image[1024..1028].copy_from_slice(&[0xe2, 0xe1, 0xf5, 0xe0]);
        let uuid: [u8; 16] = std::array::from_fn(|index| index as u8 + 1);
        image[1072..1088].copy_from_slice(&uuid);
        fs::write(path, &image).unwrap();
        assert_eq!(uuid_at(path), Some(uuid));
        assert_eq!(hex(&uuid), "0102030405060708090a0b0c0d0e0f10");
        image[1024] = 0;
        fs::write(path, &image).unwrap();
        assert_eq!(uuid_at(path), None);
        fs::write(path, &image[..1100]).unwrap();
        assert_eq!(uuid_at(path), None);
        assert_eq!(uuid_at("/nonexistent"), None);
        image[1080..1082].copy_from_slice(&[0x53, 0xef]);
        image[1128..1144].copy_from_slice(&[7; 16]);
        fs::write(path, &image).unwrap();
        assert_eq!(uuid_at(path), Some([7; 16]));
    }
}
