//! Generates random operations.

use micabox_ext4::Rename;

/// A path: names from the root on.
pub type Path = Vec<String>;

/// An operation.
#[derive(Debug, Clone)]
pub enum Op {
    Create(Path),
    Mkdir(Path),
    Symlink(Path, String),
    Write {
        path: Path,
        offset: u64,
        length: usize,
        byte: u8,
    },
    Truncate(Path, u64),
    Allocate(Path, u64, u64),
    Punch(Path, u64, u64),
    Zero(Path, u64, u64),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, Rename),
    Chmod(Path, u16),
    SetXattr(Path, String, Vec<u8>),
    RemoveXattr(Path, String),
    Sync,
}

/// A deterministic source of numbers.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Returns a name: from a small set, so that operations collide; sometimes long, so that
/// directories grow.
fn name(random: &mut Random, directories: bool) -> String {
    match random.below(8) {
        0 | 1 if directories => format!("d{}", random.below(3)),
        0..5 => format!("f{}", random.below(6)),
        _ => format!(
            "{}{}",
            "n".repeat(random.below(120) as usize),
            random.below(60)
        ),
    }
}

fn path(random: &mut Random) -> Path {
    let mut path: Path = (0..random.below(3))
        .map(|_| format!("d{}", random.below(3)))
        .collect();
    path.push(name(random, true));
    path
}

/// Returns an offset or length: near the edges of blocks and chunks.
fn offset(random: &mut Random) -> u64 {
    let edges = [0, 4096, 8192, 65536, 131_072, 300_000];
    let edge = edges[random.below(edges.len() as u64) as usize];
    edge + random.below(3) * random.below(3000)
}

fn length(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 1 + random.below(10),
        1 => 4096,
        2 => 1 + random.below(20_000),
        _ => 1 + random.below(150_000),
    }
}

impl Op {
    /// Returns a random operation.
    pub fn random(random: &mut Random) -> Self {
        let target = path(random);
        match random.below(34) {
            0..6 => Self::Create(target),
            6..9 => Self::Mkdir(target),
            9 => Self::Symlink(target, "to/".repeat(1 + random.below(60) as usize)),
            10..16 => Self::Write {
                path: target,
                offset: offset(random),
                length: length(random) as usize,
                byte: random.next() as u8,
            },
            16 => Self::Truncate(target, offset(random)),
            17 => Self::Allocate(target, offset(random), length(random)),
            18 => Self::Punch(target, offset(random), length(random)),
            19 => Self::Zero(target, offset(random), length(random)),
            20 | 21 => Self::Link(target, path(random)),
            22..25 => Self::Unlink(target),
            25 => Self::Rmdir(target),
            26..29 => Self::Rename(target, path(random), Rename::Replace),
            29 => Self::Rename(target, path(random), Rename::Exchange),
            30 => Self::Rename(target, path(random), Rename::NoReplace),
            31 => Self::Chmod(target, random.next() as u16 & 0o5777),
            32 => {
                let value = vec![random.next() as u8; random.below(600) as usize];
                Self::SetXattr(target, format!("user.x{}", random.below(4)), value)
            }
            _ => match random.below(4) {
                0 => Self::RemoveXattr(target, format!("user.x{}", random.below(4))),
                _ => Self::Sync,
            },
        }
    }
}
