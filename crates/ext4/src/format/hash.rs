//! Hashes of names in indexed directories: `fs/ext4/hash.c`, and
//! Documentation/filesystems/ext4/directory.rst.

use micabox_file::narrow::saturate32;

/// The hash of an indexed directory: `hash_version` of its root, or the superblock's
/// `s_def_hash_version`. The `Unsigned` versions are never stored: a superblock flag selects them
/// in place of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The original hash.
    Legacy,
    /// Half of an MD4: the default of all filesystems since 2002.
    HalfMd4,
    /// TEA.
    Tea,
    /// [`Version::Legacy`] on unsigned characters.
    LegacyUnsigned,
    /// [`Version::HalfMd4`] on unsigned characters.
    HalfMd4Unsigned,
    /// [`Version::Tea`] on unsigned characters.
    TeaUnsigned,
}

impl Version {
    /// Decodes the number on disk; `unsigned` is the superblock's flag. `None` for a version that
    /// needs a key (SipHash, 6) or is unknown.
    #[must_use]
    pub fn from_byte(byte: u8, unsigned: bool) -> Option<Self> {
        Some(match (byte, unsigned) {
            (0, false) => Self::Legacy,
            (1, false) => Self::HalfMd4,
            (2, false) => Self::Tea,
            (0, true) | (3, _) => Self::LegacyUnsigned,
            (1, true) | (4, _) => Self::HalfMd4Unsigned,
            (2, true) | (5, _) => Self::TeaUnsigned,
            _ => return None,
        })
    }

    fn is_unsigned(self) -> bool {
        matches!(
            self,
            Self::LegacyUnsigned | Self::HalfMd4Unsigned | Self::TeaUnsigned
        )
    }
}

/// The end of the hash space, which must not be the hash of a name.
const END: u32 = 0x7fff_ffff;

/// Computes the hash of a name, whose lowest bit is 0 (in an index, a 1 there means that equal
/// hashes continue from the block before), and the minor hash, which orders equal hashes.
///
/// An all-zero `seed` stands for the default seed.
#[must_use]
pub fn hash(version: Version, seed: [u32; 4], name: &[u8]) -> (u32, u32) {
    let unsigned = version.is_unsigned();
    let mut state = if seed == [0; 4] {
        [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]
    } else {
        seed
    };
    let (major, minor) = match version {
        Version::Legacy | Version::LegacyUnsigned => (legacy(name, unsigned), 0),
        Version::HalfMd4 | Version::HalfMd4Unsigned => {
            let mut rest = name;
            while !rest.is_empty() {
                half_md4(&mut state, words::<8>(rest, unsigned));
                rest = rest.get(32..).unwrap_or_default();
            }
            (state[1], state[2])
        }
        Version::Tea | Version::TeaUnsigned => {
            let mut rest = name;
            while !rest.is_empty() {
                tea(&mut state, words::<4>(rest, unsigned));
                rest = rest.get(16..).unwrap_or_default();
            }
            (state[0], state[1])
        }
    };
    let major = major & !1;
    (
        if major == END << 1 {
            (END - 1) << 1
        } else {
            major
        },
        minor,
    )
}

/// Widens a character as C does.
#[inline]
fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned {
        byte.into()
    } else {
        i32::from(byte.cast_signed()).cast_unsigned()
    }
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut hash0, mut hash1) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let product = widen(byte, unsigned).wrapping_mul(7_152_373);
        let mut hash = hash1.wrapping_add(hash0 ^ product);
        if hash & 0x8000_0000 != 0 {
            hash = hash.wrapping_sub(0x7fff_ffff);
        }
        (hash1, hash0) = (hash0, hash);
    }
    hash0 << 1
}

/// Returns the first `4 * N` bytes of `message` as words, padded with the message's length.
#[inline]
fn words<const N: usize>(message: &[u8], unsigned: bool) -> [u32; N] {
    let length = saturate32(message.len());
    let half = length | length << 8;
    let pad = half | half << 16;
    let mut words = [pad; N];
    for (word, bytes) in words.iter_mut().zip(message.chunks(4)) {
        for &byte in bytes {
            *word = widen(byte, unsigned).wrapping_add(*word << 8);
        }
    }
    words
}

fn tea(state: &mut [u32; 4], input: [u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let [a, b, c, d] = input;
    let (mut b0, mut b1, mut sum) = (state[0], state[1], 0u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        b0 = b0.wrapping_add(
            (b1 << 4).wrapping_add(a) ^ b1.wrapping_add(sum) ^ (b1 >> 5).wrapping_add(b),
        );
        b1 = b1.wrapping_add(
            (b0 << 4).wrapping_add(c) ^ b0.wrapping_add(sum) ^ (b0 >> 5).wrapping_add(d),
        );
    }
    state[0] = state[0].wrapping_add(b0);
    state[1] = state[1].wrapping_add(b1);
}

/// Performs MD4's three rounds with half of the steps each.
fn half_md4(state: &mut [u32; 4], x: [u32; 8]) {
    /// Performs one round: the rotation determines the order of the state's words in each step.
    fn round(
        s: &mut [u32; 4],
        f: impl Fn(u32, u32, u32) -> u32,
        constant: u32,
        input: [u32; 8],
        rotations: [u32; 4],
    ) {
        for (step, word) in input.into_iter().enumerate() {
            let [a, b, c, d] = *s;
            let sum = a
                .wrapping_add(f(b, c, d))
                .wrapping_add(word)
                .wrapping_add(constant);
            // The next step's a, b, c, d are this one's d, new a, b, c.
            *s = [d, sum.rotate_left(rotations[step % 4]), b, c];
        }
    }
    let mut s = *state;
    let [x0, x1, x2, x3, x4, x5, x6, x7] = x;
    round(&mut s, |x, y, z| z ^ (x & (y ^ z)), 0, x, [3, 7, 11, 19]);
    round(
        &mut s,
        |x, y, z| (x & y).wrapping_add((x ^ y) & z),
        0x5A82_7999,
        [x1, x3, x5, x7, x0, x2, x4, x6],
        [3, 5, 9, 13],
    );
    round(
        &mut s,
        |x, y, z| x ^ y ^ z,
        0x6ED9_EBA1,
        [x3, x7, x2, x6, x1, x5, x0, x4],
        [3, 9, 11, 15],
    );
    for (word, value) in state.iter_mut().zip(s) {
        *word = word.wrapping_add(value);
    }
}
