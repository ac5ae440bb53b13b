//! Keys as text: base64 between two lines (RFC 9580, section 6).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

const BEGIN: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
const END: &str = "-----END PGP PUBLIC KEY BLOCK-----";

/// Returns the packets of a file of keys, which may be text; of several blocks those of all.
pub(super) fn packets(file: &[u8]) -> Result<Vec<u8>, &'static str> {
    if file.first().is_some_and(|first| first & 0x80 != 0) {
        return Ok(file.to_vec());
    }
    let text = String::from_utf8_lossy(file);
    let mut lines = text.lines().map(str::trim_end);
    let mut packets = Vec::new();
    while lines.any(|line| line == BEGIN) {
        // Headers say nothing about keys, and end with an empty line.
        if !lines.by_ref().any(str::is_empty) {
            return Err("a block of it ends early");
        }
        let (mut body, mut checksum, mut has_end) = (String::new(), None, false);
        for line in lines.by_ref() {
            if line == END {
                has_end = true;
                break;
            }
            match line.strip_prefix('=') {
                Some(sum) => checksum = Some(sum),
                None => body.push_str(line),
            }
        }
        if !has_end {
            return Err("a block of it ends early");
        }
        let not_base64 = |_| "it is not base64";
        let block = BASE64_STANDARD.decode(&body).map_err(not_base64)?;
        if let Some(sum) = checksum {
            let sum = BASE64_STANDARD.decode(sum).map_err(not_base64)?;
            if sum != crc24(&block).to_be_bytes()[1..] {
                return Err("its checksum is another");
            }
        }
        packets.extend(block);
    }
    Ok(packets)
}

/// The checksum that GnuPG still writes and checks (RFC 9580, section 6.1).
fn crc24(bytes: &[u8]) -> u32 {
    let mut crc: u32 = 0x00b7_04ce;
    for byte in bytes {
        crc ^= u32::from(*byte) << 16;
        for _ in 0..8 {
            crc <<= 1;
            if crc & 0x0100_0000 != 0 {
                crc ^= 0x0186_4cfb;
            }
        }
    }
    crc & 0x00ff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_and_what_is_around_them_is_not() {
        // CRC-24's check value is that of "123456789": 21cf02.
        let block = format!("{BEGIN}\nComment: x\n\nMTIz\nNDU2Nzg5\n=Ic8C\n{END}\n");
        let around = format!("a key\r\n{block}and another\n{block}-----BEGIN OTHER-----\n");
        assert_eq!(packets(around.as_bytes()).unwrap(), b"123456789123456789");
        assert_eq!(packets(b"no key").unwrap(), b"");
        assert_eq!(packets(&[0x99, 1]).unwrap(), [0x99, 1]);
        for (damaged, problem) in [
            (block.replace("MTIz", "MTI0"), "its checksum is another"),
            (block.replace("MTIz", "M!Iz"), "it is not base64"),
            (block.replace(END, ""), "a block of it ends early"),
            (block.replace("\n\n", "\n"), "a block of it ends early"),
        ] {
            assert_eq!(packets(damaged.as_bytes()), Err(problem), "{damaged}");
        }
    }
}
