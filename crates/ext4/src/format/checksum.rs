//! The checksum of all metadata: CRC-32C without the usual inversions.
//!
//! Equivalent to the kernel's `ext4_chksum` and `jbd2_chksum`: the register is passed in and
//! returned unchanged, so that checksums can be chained.

/// Continues the CRC-32C register `seed` over `bytes`. The first seed is `!0`.
#[must_use]
#[cfg(feature = "std")]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Continues the CRC-32C register `seed` over `bytes`. The first seed is `!0`.
#[must_use]
#[cfg(not(feature = "std"))]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    const fn table(polynomial: u32) -> [u32; 256] {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ (polynomial & (crc & 1).wrapping_neg());
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    }
    static TABLE: [u32; 256] = table(POLYNOMIAL);
    bytes.iter().fold(seed, |crc, &byte| {
        (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)]
    })
}

/// Computes the CRC-16 (polynomial 0xA001, reflected) of group descriptors on filesystems that have
/// `uninit_bg` but not `metadata_csum`: the kernel's `crc16`, first seed `!0`.
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| {
            (crc >> 1) ^ (0xA001 & (crc & 1).wrapping_neg())
        })
    })
}

/// Returns the seed of an inode: the checksums of its blocks start with it.
#[must_use]
pub fn inode_seed(filesystem_seed: u32, inode: u32, generation: u32) -> u32 {
    let seed = crc32c(filesystem_seed, &inode.to_le_bytes());
    crc32c(seed, &generation.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_has_its_published_check_values() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(!0, b"123456789"), 0x4b37); // CRC-16/MODBUS
    }
}
