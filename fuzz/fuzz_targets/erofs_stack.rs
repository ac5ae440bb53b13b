//! Two layers of arbitrary bytes, one on the other: the last two bytes set the split.

#![no_main]

use micabox_fuzz::{erofs, erofs_seeds};

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(erofs_seeds::stacks()),
    |data: &[u8]| {
        let Some((data, at)) = data.split_last_chunk::<2>() else {
            return;
        };
        let at = usize::from(u16::from_le_bytes(*at)) * 64;
        let (lower, upper) = data.split_at(at.min(data.len()));
        erofs::stack(&[lower.to_vec(), upper.to_vec()]);
    }
);
