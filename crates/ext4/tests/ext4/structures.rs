//! Runs the fuzz targets on mutated structures: they neither panic nor hang, and a filesystem that
//! the check accepts can be read and changed, and is accepted afterwards.

#[path = "../../../../fuzz/src/ext4.rs"]
mod ext4;

/// A small generator of numbers; deterministic.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// Returns little-endian words of the kinds that structures consist of.
fn bytes(random: &mut Random, most: usize) -> Vec<u8> {
    let length = random.below(most) + 1;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let word: u32 = match random.below(6) {
            0 => 0,
            1 => random.below(300) as u32,
            2 => u32::MAX >> random.below(32),
            3 => 1 << random.below(32),
            4 => 0x0001_f30a,
            _ => random.below(usize::MAX >> 1) as u32,
        };
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// A fuzz target.
type Target = fn(&[u8]);

#[test]
fn arbitrary_structures_are_survived() {
    let targets: [(Target, usize); 5] = [
        (ext4::superblock, 1024),
        (ext4::directory, 8192),
        (ext4::extents, 4000),
        (ext4::xattrs, 4000),
        (ext4::journal, 20_000),
    ];
    let mut random = Random(3);
    for (target, most) in targets {
        for _ in 0..150 {
            let most = 1 + random.below(most);
            target(&bytes(&mut random, most));
        }
    }
}

/// Sound structures with a few changed fields get further than arbitrary bytes.
#[test]
fn damaged_structures_are_survived() {
    let mut random = Random(1);
    for (target, sound) in ext4::seeds() {
        let run = match target {
            "ext4_superblock" => ext4::superblock,
            "ext4_directory" => ext4::directory,
            "ext4_extents" => ext4::extents,
            "ext4_xattrs" => ext4::xattrs,
            _ => ext4::journal,
        };
        for _ in 0..250 {
            let mut damaged = sound.clone();
            for _ in 0..=random.below(4) {
                let place = random.below(damaged.len());
                // After the byte that selects the operation.
                let word = 1 + (place & !3);
                let value = [0, 1, u32::MAX, 1 << 31, 0xffff, 12, 4096][random.below(7)];
                match damaged.get_mut(word..word + 4) {
                    Some(bytes) if random.below(2) == 0 => {
                        bytes.copy_from_slice(&u32::to_le_bytes(value));
                    }
                    _ => damaged[place] ^= 1 << random.below(8),
                }
            }
            run(&damaged);
        }
    }
}
