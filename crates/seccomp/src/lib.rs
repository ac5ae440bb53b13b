#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod assemble;
mod filter;
pub mod interpret;

pub use assemble::{Instruction, TooLong};
pub use filter::{Filter, Rule, Test, Verdict};

/// `AUDIT_ARCH_X86_64` or `AUDIT_ARCH_AARCH64` (`linux/audit.h`). On other architectures, which 32-bit programs use, the
/// numbers mean other calls.
pub const ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") {
    0xc000_00b7
} else {
    0xc000_003e
};

/// Offset of the call's number in `struct seccomp_data`, in bytes.
const NUMBER_AT: u32 = 0;

/// Offset of its architecture.
const ARCHITECTURE_AT: u32 = 4;

/// Offset of its first argument. Each has eight bytes, the lower half first.
const ARGUMENTS_AT: u32 = 16;
