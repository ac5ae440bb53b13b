//! Finds devices by their contents or serial number, never by name or order.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use micabox_ground::hex;
use micabox_wire::{BootFailed, Device, Extent, Range};

use super::device_mapper::{CONTROL, DeviceMapper};
use crate::announced::wait_for;
use crate::step::{Step, failed};

/// How the beginning of a device is identified, in bytes from its start: offset of a magic number,
/// the magic number, offset of the UUID.
const BEGINNINGS: [(usize, &[u8], usize); 3] = [
    // EROFS: `EROFS_SUPER_MAGIC_V1`, little endian.
    (1024, &0xE0F5_E1E2_u32.to_le_bytes(), 1024 + 48),
    // ext4: `EXT4_SUPER_MAGIC`, little endian.
    (1024 + 0x38, &0xEF53_u16.to_le_bytes(), 1024 + 0x68),
    // GPT, in its second sector of 512 bytes: the disk's GUID.
    (512, b"EFI PART", 512 + 56),
];

/// Bytes of a sector, the unit of partitions in sysfs.
const SECTOR: u64 = 512;

/// The machine's devices, as far as they have been requested.
#[derive(Debug, Default)]
pub struct Devices {
    /// Kernel names by UUID.
    pmem: BTreeMap<[u8; 16], String>,
    /// For each disk with requested parts: the kernel names of its partitions by offset and length
    /// in bytes.
    partitions: BTreeMap<String, BTreeMap<(u64, u64), String>>,
    mapper: Option<DeviceMapper>,
}

/// The block device of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// `/dev/pmem0`.
    pub path: String,
    /// Whether the image on it is mapped, not copied through the page cache.
    pub dax: bool,
}

impl Devices {
    /// Returns the block device for `extent`.
    pub fn get(&mut self, extent: &Extent) -> Result<BlockDevice, BootFailed> {
        let (mut name, dax) = match &extent.device {
            Device::Pmem { uuid } => (self.pmem(uuid)?, true),
            Device::Disk { serial } => (disk(serial)?, false),
            Device::Verity {
                serial,
                tree,
                blocks,
                root,
            } => (self.verity(serial, tree, *blocks, root)?, false),
        };
        if let Some(range) = extent.range {
            name = self.piece(name, range)?;
        }
        // EROFS would continue without DAX and only log it; the host requires DAX.
        if dax && !offers_dax(&name) {
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
            // A device that can't be read yet may be readable in the next scan.
            if let Some(uuid) = uuid_at(&format!("/dev/{name}")) {
                self.pmem.insert(uuid, name);
            }
        }
    }

    /// Returns the device of the first `blocks` of a disk, which are checked against the tree on another one.
    fn verity(
        &mut self,
        serial: &str,
        tree: &str,
        blocks: u64,
        root: &[u8; 32],
    ) -> Result<String, BootFailed> {
        let [data, tree] = [disk(serial)?, disk(tree)?].map(|name| format!("/dev/{name}"));
        let target = format!("{data}, {blocks} blocks, with the tree on {tree}");
        let mapper = self.mapper().step("open the device mapper", CONTROL)?;
        mapper
            .verity(&data, &tree, blocks, root)
            .step("check a disk (dm-verity)", target)
    }

    fn mapper(&mut self) -> std::io::Result<&mut DeviceMapper> {
        let mapper = match self.mapper.take() {
            Some(mapper) => mapper,
            None => DeviceMapper::open()?,
        };
        Ok(self.mapper.insert(mapper))
    }

    /// Returns the device for `range` of the disk `name`: its partition, or a new device-mapper
    /// device.
    fn piece(&mut self, name: String, range: Range) -> Result<String, BootFailed> {
        if let Some(partition) = self.partition(&name, range) {
            return Ok(partition);
        }
        let target = format!("/dev/{name}, {} bytes at {}", range.length, range.offset);
        let mapper = match self.mapper() {
            // The kernel has no device mapper, but may still be scanning for partitions.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let partition = wait_for(|| {
                    self.partitions.remove(&name);
                    self.partition(&name, range)
                });
                let detail = "it is not a partition, and the kernel has no device mapper";
                return partition
                    .ok_or_else(|| failed("find a piece of a device", &target, 0, detail));
            }
            opened => opened.step("open the device mapper", CONTROL)?,
        };
        mapper
            .linear(&format!("/dev/{name}"), range)
            .step("map a piece of a device", target)
    }

    /// Returns the kernel name of the partition of `disk` that is exactly `range`.
    fn partition(&mut self, disk: &str, range: Range) -> Option<String> {
        let partitions = match self.partitions.get(disk) {
            Some(partitions) => partitions,
            None => {
                let found = partitions(disk);
                self.partitions.entry(disk.to_owned()).or_insert(found)
            }
        };
        partitions.get(&(range.offset, range.length)).cloned()
    }
}

/// Returns the partitions of a disk.
fn partitions(disk: &str) -> BTreeMap<(u64, u64), String> {
    let entries = fs::read_dir(format!("/sys/block/{disk}"));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(disk));
    let partitions = names.filter_map(|name| {
        let bytes = |what| {
            let sectors = read_sysfs(&format!("/sys/block/{disk}/{name}/{what}"));
            sectors.parse::<u64>().ok()?.checked_mul(SECTOR)
        };
        Some(((bytes("start")?, bytes("size")?), name))
    });
    partitions.collect()
}

/// Whether DAX is available on the block device `name`, or on the disk that it is a partition of.
fn offers_dax(name: &str) -> bool {
    let queues = ["queue", "../queue"].iter();
    queues
        .map(|queue| read_sysfs(&format!("/sys/class/block/{name}/{queue}/dax")))
        .any(|dax| dax == "1")
}

/// Returns the kernel name of the virtio block device with this serial number.
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

/// Reads the UUID at the beginning of the file or device at `path`.
fn uuid_at(path: &str) -> Option<[u8; 16]> {
    let mut start = [0; 1024 + 128];
    File::open(path)
        .and_then(|file| file.read_exact_at(&mut start, 0))
        .ok()?;
    let is_at = |at: usize, magic: &[u8]| start.get(at..at + magic.len()) == Some(magic);
    let known = BEGINNINGS.iter().find(|(at, magic, _)| is_at(*at, magic));
    let (_, _, uuid) = known?;
    start.get(*uuid..*uuid + 16)?.try_into().ok()
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
        assert_eq!(hex(uuid), "0102030405060708090a0b0c0d0e0f10");
        image[1024] = 0;
        fs::write(path, &image).unwrap();
        assert_eq!(uuid_at(path), None);
        fs::write(path, &image[..1100]).unwrap();
        assert_eq!(uuid_at(path), None);
        assert_eq!(uuid_at("/proc/none"), None);
        image[1080..1082].copy_from_slice(&[0x53, 0xef]);
        image[1128..1144].copy_from_slice(&[7; 16]);
        fs::write(path, &image).unwrap();
        assert_eq!(uuid_at(path), Some([7; 16]));
        // A filesystem's magic takes precedence over the contents of the sector before it.
        image[512..520].copy_from_slice(b"EFI PART");
        image[568..584].copy_from_slice(&[8; 16]);
        fs::write(path, &image).unwrap();
        assert_eq!(uuid_at(path), Some([7; 16]));
        image[1080..1082].fill(0);
        fs::write(path, &image).unwrap();
        assert_eq!(uuid_at(path), Some([8; 16]));
    }
}
