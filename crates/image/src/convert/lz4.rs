//! Inflates a block of LZ4. Source of the format: lz4's `doc/lz4_Block_format.md`.

/// Fills `out` with what `block` contains, of which it may be only the beginning. `None` if the block is damaged.
pub(super) fn inflate(mut block: &[u8], out: &mut [u8]) -> Option<()> {
    let mut at = 0;
    loop {
        let (&token, rest) = block.split_first()?;
        block = rest;
        let literals = length(token >> 4, &mut block)?.min(out.len() - at);
        let (now, rest) = block.split_at_checked(literals)?;
        out.get_mut(at..at + literals)?.copy_from_slice(now);
        block = rest;
        at += literals;
        if at == out.len() {
            return Some(());
        }
        let (distance, rest) = block.split_first_chunk()?;
        block = rest;
        let distance = usize::from(u16::from_le_bytes(*distance));
        let from = at.checked_sub(distance).filter(|_| distance > 0)?;
        // At least four bytes match.
        let count = length(token & 15, &mut block)?.checked_add(4)?;
        let end = at + count.min(out.len() - at);
        // What is copied may be what was copied just now.
        let mut from = from;
        while at < end {
            let step = (at - from).min(end - at);
            out.copy_within(from..from + step, at);
            at += step;
            from += step;
        }
        if at == out.len() {
            return Some(());
        }
    }
}

/// Reads a length that begins with four bits, all of which are set if bytes follow.
fn length(bits: u8, block: &mut &[u8]) -> Option<usize> {
    let mut length = usize::from(bits);
    let mut goes_on = bits == 15;
    while goes_on {
        let (&more, rest) = block.split_first()?;
        *block = rest;
        length = length.checked_add(more.into())?;
        goes_on = more == 255;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_literals_and_matches() {
        // "abc", six bytes from three before, "xyz" and the end.
        let block = b"\x32abc\x03\x00\x30xyz";
        let mut out = [0; 12];
        inflate(block, &mut out).unwrap();
        assert_eq!(&out, b"abcabcabcxyz");
        // Less is the beginning, more is damage.
        let mut less = [0; 5];
        inflate(block, &mut less).unwrap();
        assert_eq!(&less, b"abcab");
        assert_eq!(inflate(block, &mut [0; 13]), None);
        for end in 0..block.len() {
            assert_eq!(inflate(&block[..end], &mut [0; 12]), None, "{end}");
        }
        // Long lengths; a match of nothing, and one from before the beginning.
        let long = [&b"\xf0\xff\x01"[..], &[7; 271]].concat();
        let mut out = [0; 271];
        inflate(&long, &mut out).unwrap();
        assert_eq!(out, [7; 271]);
        for distance in [0, 2] {
            let block = [0x10, b'a', distance, 0, 0];
            assert_eq!(inflate(&block, &mut [0; 9]), None);
        }
    }
}
