//! The superblock's checksum.

use micabox_file::narrow::low8;

const CRC32C_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte: u32 = 0;
    while byte < 256 {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// Computes the superblock's checksum: CRC-32C over the superblock's block from the superblock on,
/// with the checksum field zeroed, and without the usual final inversion of the CRC.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |crc, &byte| {
        (crc >> 8) ^ CRC32C_TABLE[usize::from(low8(crc) ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_crc32c() {
        // The check value of CRC-32C (iSCSI), with the usual final inversion.
        assert_eq!(!checksum(b"123456789"), 0xe306_9283);
    }
}
