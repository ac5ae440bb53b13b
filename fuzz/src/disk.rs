//! Disk images: qcow2, VMDK, partition tables.

use std::io;

use micabox_disk::{Disk, WriteAt, copy, filesystem, partition};

/// Most bytes of a disk that are copied.
const MOST: u64 = 4 << 20;

/// A copy that must stay within its length.
struct Bounded(u64);

impl WriteAt for Bounded {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(
            offset + bytes.len() as u64 <= self.0,
            "written behind the end"
        );
        Ok(())
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        assert_eq!(length, self.0);
        Ok(())
    }
}

/// Opens a disk, looks for partitions and filesystems, and copies its first megabytes. What is read twice must be
/// the same.
pub fn image(bytes: &[u8]) {
    let Ok(mut disk) = Disk::open(bytes) else {
        return;
    };
    let size = disk.size();
    let _ = filesystem::at(&mut disk, 0, size);
    if let Ok(Some(table)) = partition::list(&mut disk) {
        for found in &table.partitions {
            assert!(
                found.start + found.length <= size,
                "a partition ends behind the disk"
            );
        }
        let _ = partition::choose(&mut disk, &table.partitions, None);
    }
    let length = size.min(MOST);
    let _ = copy(&mut disk, 0, length, &mut Bounded(length));
    let mut piece = vec![0; length.min(1 << 16) as usize];
    if disk.read(0, &mut piece).is_ok() {
        let mut again = vec![1; piece.len()];
        disk.read(0, &mut again).expect("it was read before");
        assert!(piece == again, "what is read twice is not the same");
    }
}

/// A qcow2 image with a table of each level and a cluster, a VMDK with a grain, a GPT and an MBR.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let be = |at: usize, bytes: &[u8], image: &mut Vec<u8>| {
        if let Some(place) = image.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    let mut qcow2 = vec![0; 8192];
    be(0, b"QFI\xfb\0\0\0\x03", &mut qcow2);
    be(20, &9_u32.to_be_bytes(), &mut qcow2);
    be(24, &65536_u64.to_be_bytes(), &mut qcow2);
    be(36, &2_u32.to_be_bytes(), &mut qcow2);
    be(40, &512_u64.to_be_bytes(), &mut qcow2);
    be(100, &104_u32.to_be_bytes(), &mut qcow2);
    be(512, &1024_u64.to_be_bytes(), &mut qcow2);
    be(1024, &2048_u64.to_be_bytes(), &mut qcow2);
    be(1032, &(1_u64 << 62 | 4096).to_be_bytes(), &mut qcow2);
    let mut vmdk = vec![0; 16384];
    be(0, b"KDMV\x01\0\0\0\x03", &mut vmdk);
    for (at, value) in [(12, 256_u64), (20, 8), (28, 1), (36, 1), (56, 4)] {
        be(at, &value.to_le_bytes(), &mut vmdk);
    }
    be(44, &512_u32.to_le_bytes(), &mut vmdk);
    let words = b"parentCID=ffffffff\ncreateType=\"monolithicSparse\"\n";
    be(512, words, &mut vmdk);
    be(2048, &8_u32.to_le_bytes(), &mut vmdk);
    be(4096, &16_u32.to_le_bytes(), &mut vmdk);
    let mut gpt = vec![0; 16384];
    be(512, b"EFI PART", &mut gpt);
    for (at, value) in [(584, 2_u64), (592, 128 << 32 | 4)] {
        be(at, &value.to_le_bytes(), &mut gpt);
    }
    be(1024, &[7; 16], &mut gpt);
    for (at, value) in [(1056, 8_u64), (1064, 20)] {
        be(at, &value.to_le_bytes(), &mut gpt);
    }
    let mut mbr = vec![0; 16384];
    be(510, b"\x55\xaa", &mut mbr);
    be(450, &[5, 0, 0, 0, 2, 0, 0, 0, 28], &mut mbr);
    be(1534, b"\x55\xaa", &mut mbr);
    be(1474, &[0x83, 0, 0, 0, 1, 0, 0, 0, 4], &mut mbr);
    vec![("qcow2", qcow2), ("vmdk", vmdk), ("gpt", gpt), ("mbr", mbr)]
}
