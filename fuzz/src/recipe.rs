//! Recipes, from which a stored layer's archive is rebuilt.

use std::io::Read;

use micabox_image::fuzzing::{rebuild, rebuild_from};

const MAGIC: &[u8; 8] = b"mica-rc\x01";
/// Bytes of the image that steps refer to.
const IMAGE: usize = 3 * 4096;

/// Follows steps, behind the archive's length. Input with zstd's magic is also taken as a recipe
/// in itself.
pub fn steps(bytes: &[u8]) {
    let Some((length, steps)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let size = u64::from(u32::from_le_bytes(*length)) & 0xff_ffff;
    let image: Vec<u8> = (0..IMAGE).map(|at| at as u8 | 1).collect();
    if steps.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        compare(steps, &image, size);
    }
    let recipe = zstd::encode_all(&[MAGIC, steps].concat()[..], 1).expect("into memory");
    let archive = compare(&recipe, &image, size);
    // Another reader must get the same result from the steps.
    assert_eq!(archive, follow(steps, &image, size), "{steps:?}");
}

/// Rebuilds the archive, which must not depend on the buffers' size or exceed the announced size.
fn compare(recipe: &[u8], image: &[u8], size: u64) -> Option<Vec<u8>> {
    let read = |piece: usize| {
        let mut archive = Vec::new();
        let mut buffer = vec![0; piece];
        let mut rebuilt = rebuild(recipe, image, size).ok()?;
        loop {
            match rebuilt.read(&mut buffer) {
                Ok(0) => return Some(archive),
                Ok(count) => archive.extend_from_slice(&buffer[..count]),
                Err(_) => return None,
            }
            assert!(archive.len() as u64 <= size, "more than {size} bytes");
        }
    };
    let (one, other) = (read(1 << 16), read(777));
    assert!(one == other, "the buffer makes a difference");
    assert!(
        one.as_ref()
            .is_none_or(|archive| archive.len() as u64 == size)
    );
    for start in [1, size / 2, size] {
        let mut rest = Vec::new();
        let passed = rebuild_from(recipe, image, size, start.min(size));
        let read = passed.and_then(|mut archive| archive.read_to_end(&mut rest));
        // What is passed over is not read, so only the rest has to be there.
        if let (Ok(_), Some(archive)) = (&read, &one) {
            assert!(
                rest == archive[start.min(size) as usize..],
                "other bytes from {start}"
            );
        }
        assert!(one.is_none() || read.is_ok(), "nothing from {start}");
    }
    one
}

/// The simplest reader of steps.
fn follow(mut steps: &[u8], image: &[u8], size: u64) -> Option<Vec<u8>> {
    let mut archive = Vec::new();
    let mut image_end = 0_u64;
    loop {
        let (kind, rest) = steps.split_first()?;
        steps = rest;
        if *kind == 0 {
            return (archive.len() as u64 == size).then_some(archive);
        }
        let length = number(&mut steps)?;
        if length == 0 || length > size - archive.len() as u64 {
            return None;
        }
        let count = length as usize;
        match kind {
            1 => {
                archive.extend(steps.get(..count)?);
                steps = &steps[count..];
            }
            2 => archive.resize(archive.len() + count, 0),
            3 => {
                let zigzag = i128::from(number(&mut steps)?);
                let distance = if zigzag & 1 == 0 {
                    zigzag / 2
                } else {
                    -(zigzag / 2) - 1
                };
                let at = i128::from(image_end.next_multiple_of(4096)) + distance;
                let at = usize::try_from(at).ok()?;
                archive.extend(image.get(at..at.checked_add(count)?)?);
                image_end = (at + count) as u64;
            }
            _ => return None,
        }
    }
}

/// Reads a LEB128 number below 2^64.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u128;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u128::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u64::try_from(number).ok();
        }
    }
    None
}

/// Steps of every kind.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let all = b"\x01\x05hello\x02\xfb\x03\x03\x80\x20\0\x03\x10\x01\x01\x03end\0";
    let size = 5 + 507 + 4096 + 16 + 3_u32;
    vec![
        ("all", [&size.to_le_bytes(), &all[..]].concat()),
        ("nothing", b"\0\0\0\0\0".to_vec()),
        ("back", b"\x20\0\0\0\x03\x10\x00\x03\x10\xff\x3f\0".to_vec()),
    ]
}
