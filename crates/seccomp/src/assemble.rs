//! Instructions of the kernel's programs, written from the last one to the first.

use std::error::Error;
use std::fmt;

/// Codes of the instructions in use (`linux/bpf_common.h`).
pub(crate) mod code {
    /// Loads the word at the offset `k`.
    pub(crate) const LOAD: u16 = 0x20;
    /// Keeps the bits of `k`.
    pub(crate) const AND: u16 = 0x54;
    /// Passes over the next `k` instructions.
    pub(crate) const GO: u16 = 0x05;
    /// Compares with `k`: equal.
    pub(crate) const IF_EQUAL: u16 = 0x15;
    /// Compares with `k`: greater or equal, without signs.
    pub(crate) const IF_AT_LEAST: u16 = 0x35;
    /// Ends with `k`.
    pub(crate) const RETURN: u16 = 0x06;
}

/// One instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// How many instructions are passed over if a comparison holds.
    pub jt: u8,
    /// How many otherwise.
    pub jf: u8,
    /// Its operand.
    pub k: u32,
}

/// A filter has more rules than a jump can pass over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many calls for one filter")
    }
}

impl Error for TooLong {}

/// Instructions, the last one first, so that a jump's target is known when the jump is added.
#[derive(Default)]
pub(crate) struct Backwards(Vec<Instruction>);

/// The position of an instruction that was already added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target(usize);

impl Backwards {
    pub(crate) fn put(&mut self, code: u16, k: u32) -> Target {
        self.push(code, k, 0, 0)
    }

    /// Adds a comparison of the loaded value with `k`.
    pub(crate) fn jump(
        &mut self,
        comparison: u16,
        k: u32,
        yes: Target,
        no: Target,
    ) -> Result<Target, TooLong> {
        let distance = |target| u8::try_from(self.between(target)).map_err(|_| TooLong);
        let (yes, no) = (distance(yes)?, distance(no)?);
        Ok(self.push(comparison, k, yes, no))
    }

    /// Makes what is added next continue at `target`.
    pub(crate) fn go(&mut self, target: Target) -> Result<(), TooLong> {
        let between = u32::try_from(self.between(target)).map_err(|_| TooLong)?;
        if between > 0 {
            self.put(code::GO, between);
        }
        Ok(())
    }

    /// Returns the program in the order of its execution.
    pub(crate) fn program(mut self) -> Vec<Instruction> {
        self.0.reverse();
        self.0
    }

    /// Counts the instructions between a target and the next one that is added.
    fn between(&self, target: Target) -> usize {
        self.0.len().saturating_sub(1).saturating_sub(target.0)
    }

    fn push(&mut self, code: u16, k: u32, jt: u8, jf: u8) -> Target {
        self.0.push(Instruction { code, jt, jf, k });
        Target(self.0.len() - 1)
    }
}
