//! Two layers of arbitrary bytes, one on the other: the last two bytes say where they part.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((data, at)) = data.split_last_chunk::<2>() else {
        return;
    };
    let at = usize::from(u16::from_le_bytes(*at)) * 64;
    let (lower, upper) = data.split_at(at.min(data.len()));
    micabox_fuzz::erofs::stack(&[lower.to_vec(), upper.to_vec()]);
});
