//! What the kernel makes of a program, for tests.

use crate::ARCHITECTURE;
use crate::assemble::{Instruction, code};

/// A system call, as a program sees it (`struct seccomp_data`).
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// Whose number it is.
    pub architecture: u32,
    /// Its arguments.
    pub arguments: [u64; 6],
}

impl Call {
    /// Returns a call of this architecture.
    pub fn new(number: u32, arguments: [u64; 6]) -> Self {
        Self {
            number,
            architecture: ARCHITECTURE,
            arguments,
        }
    }

    /// Returns the word at an offset in bytes. The address of the instruction is 0.
    fn word(&self, offset: u32) -> Option<u32> {
        let half = |argument: u64, shift: u32| (argument >> shift) as u32; // one half
        match offset {
            0 => Some(self.number),
            4 => Some(self.architecture),
            8 | 12 => Some(0),
            _ if offset.is_multiple_of(4) => {
                let place = offset.checked_sub(16)?;
                let argument = self.arguments.get(place as usize / 8)?;
                Some(half(*argument, place % 8 * 8))
            }
            _ => None,
        }
    }
}

/// Returns the kernel's verdict on a call ([`crate::Verdict::value`]). None if the program is not one of ours: it has
/// other instructions, or no end.
pub fn verdict(program: &[Instruction], call: &Call) -> Option<u32> {
    let (mut at, mut loaded) = (0_usize, 0);
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        let passed = match code {
            code::LOAD => {
                loaded = call.word(k)?;
                0
            }
            code::AND => {
                loaded &= k;
                0
            }
            code::GO => k,
            code::IF_EQUAL => u32::from(if loaded == k { jt } else { jf }),
            code::IF_AT_LEAST => u32::from(if loaded >= k { jt } else { jf }),
            code::RETURN => return Some(k),
            _ => return None,
        };
        at = at.checked_add(1)?.checked_add(passed as usize)?;
    }
}
