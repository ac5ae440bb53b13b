//! Mutations for ordinary tests, without a fuzzer: deterministic.

/// Pseudorandom numbers (Knuth's MMIX generator).
pub struct Random(pub u64);

impl Random {
    /// Returns the next number, below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }

    fn byte(&mut self) -> u8 {
        let favourites = [0, 1, 0x7f, 0x80, 0xff, b'0', b'"', b'/'];
        match self.below(3) {
            0 => favourites.get(self.below(8)).copied().unwrap_or_default(),
            _ => self.below(256) as u8,
        }
    }
}

/// Runs a target on `count` mutations of every seed, and on the seeds themselves.
/// `MICABOX_MUTATIONS=N` in the environment runs N times as many, different ones for each N.
pub fn run(seeds: &[(&str, Vec<u8>)], count: usize, target: impl Fn(&[u8])) {
    let factor = std::env::var("MICABOX_MUTATIONS").ok();
    let factor = factor.and_then(|text| text.parse().ok()).unwrap_or(1);
    let (mut random, count) = (Random(factor as u64), count * factor);
    for (_, seed) in seeds {
        target(seed);
        for _ in 0..count {
            let mut bytes = seed.clone();
            for _ in 0..=random.below(4) {
                mutate(&mut bytes, &mut random);
            }
            target(&bytes);
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let end = (at + random.below(40)).min(bytes.len());
    match (random.below(6), bytes.get_mut(at)) {
        (0 | 1, Some(byte)) => *byte = random.byte(),
        (2, Some(byte)) => *byte ^= 1 << random.below(8),
        (3, _) => bytes.truncate(at),
        (4, _) => {
            let piece: Vec<u8> = bytes.drain(at..end).collect();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        _ => {
            let piece: Vec<u8> = bytes.get(at..end).unwrap_or_default().to_vec();
            bytes.splice(at..at, piece);
        }
    }
}
