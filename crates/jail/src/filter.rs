//! Compiles a list of system calls to a program for the kernel (`linux/filter.h`,
//! `linux/seccomp.h`).
//!
//! The program finds a call by bisection. The kernel runs a new filter once for every existing
//! call, to learn which of them are always allowed. A program of [`seccompiler`] compares with one
//! call of the list after another, which costs three times as much, and every thread of every
//! machine pays it.

use std::io;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_TRAP,
};
use seccompiler::{BpfProgram, sock_filter};

/// `AUDIT_ARCH_X86_64` or `AUDIT_ARCH_AARCH64` (`linux/audit.h`). On other architectures the
/// numbers mean other calls.
const ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") {
    0xc000_00b7
} else {
    0xc000_003e
};

/// Offsets of the call's number and of its architecture in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

/// Fails a call as an old kernel does.
const UNKNOWN: u32 = SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();

/// Returns the offset of an argument's lower half in `struct seccomp_data`.
const fn argument_at(index: u32) -> u32 {
    16 + 8 * index
}

/// A system call that doesn't trap, or not always.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) verdict: Verdict,
}

/// What the filter does with a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// The call is allowed.
    Allowed,
    /// The call is allowed if one of these holds, and traps otherwise.
    If(Vec<Test>),
    /// The call fails with `ENOSYS`, as in a kernel that doesn't have it.
    Unknown,
}

/// Tests that the lower half of an argument is `value` where `mask` has ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Test {
    pub(super) argument: u32,
    pub(super) mask: u32,
    pub(super) value: u32,
}

/// The return instructions that a search ends at.
#[derive(Clone, Copy)]
struct Ends {
    allow: Target,
    unknown: Target,
    trap: Target,
}

/// Returns the program that applies each call's verdict, and traps all calls that are not in
/// `calls`. Each call must be in it once.
///
/// # Errors
/// If there are more calls than a jump can pass over.
pub(super) fn program(mut calls: Vec<Call>) -> io::Result<BpfProgram> {
    calls.sort();
    let mut program = Backwards::default();
    let ends = Ends {
        allow: program.put(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        unknown: program.put(BPF_RET | BPF_K, UNKNOWN),
        trap: program.put(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    program.bisect(&calls, ends)?;
    let find = program.put(BPF_LD | BPF_W | BPF_ABS, NUMBER_AT);
    let kill = program.put(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    program.jump(BPF_JEQ, ARCHITECTURE, find, kill)?;
    program.put(BPF_LD | BPF_W | BPF_ABS, ARCHITECTURE_AT);
    program.0.reverse();
    Ok(program.0)
}

/// Instructions, the last one first, so that a jump's target is known when the jump is added.
#[derive(Default)]
struct Backwards(BpfProgram);

/// The position of an instruction that was already added.
#[derive(Clone, Copy)]
struct Target(usize);

impl Backwards {
    fn put(&mut self, code: u32, k: u32) -> Target {
        self.push(code, k, 0, 0)
    }

    /// Adds a comparison of the loaded value with `k`.
    fn jump(&mut self, comparison: u32, k: u32, yes: Target, no: Target) -> io::Result<Target> {
        let distance = |target: Target| {
            let between = self.0.len() - 1 - target.0;
            u8::try_from(between).map_err(|_| io::Error::other("too many calls for one filter"))
        };
        let (yes, no) = (distance(yes)?, distance(no)?);
        Ok(self.push(BPF_JMP | comparison | BPF_K, k, yes, no))
    }

    fn push(&mut self, code: u32, k: u32, jt: u8, jf: u8) -> Target {
        let code = code as u16; // they have 8 bits
        self.0.push(sock_filter { code, jt, jf, k });
        Target(self.0.len() - 1)
    }

    /// Adds the search for the loaded number in `calls`, which are in order; returns its first
    /// instruction.
    fn bisect(&mut self, calls: &[Call], ends: Ends) -> io::Result<Target> {
        match calls {
            [] => Ok(ends.trap),
            [call] => {
                let judged = match &call.verdict {
                    Verdict::Allowed => ends.allow,
                    Verdict::If(tests) => self.test(tests, ends)?,
                    Verdict::Unknown => ends.unknown,
                };
                self.jump(BPF_JEQ, call.number, judged, ends.trap)
            }
            _ => {
                let (lower, upper) = calls.split_at(calls.len() / 2);
                let first = upper.first().map_or(0, |call| call.number);
                let lower = self.bisect(lower, ends)?;
                let upper = self.bisect(upper, ends)?;
                self.jump(BPF_JGE, first, upper, lower)
            }
        }
    }

    /// Adds the tests of the arguments; returns their first instruction.
    fn test(&mut self, tests: &[Test], ends: Ends) -> io::Result<Target> {
        let mut otherwise = ends.trap;
        for test in tests.iter().rev() {
            self.jump(BPF_JEQ, test.value, ends.allow, otherwise)?;
            self.put(BPF_ALU | BPF_AND | BPF_K, test.mask);
            otherwise = self.put(BPF_LD | BPF_W | BPF_ABS, argument_at(test.argument));
        }
        Ok(otherwise)
    }
}

#[cfg(test)]
mod tests {
    use std::env::consts::ARCH;

    use libc::{SYS_fcntl, SYS_futex, SYS_ioctl, SYS_mmap, SYS_read, SYS_statx};
    use seccompiler::{
        SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    };

    use super::*;

    /// Returns the kernel's verdict on a call, by interpreting the few instructions in use.
    fn verdict(program: &[sock_filter], data: &[u32; 16]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let instruction = &program[at];
            let k = instruction.k;
            let mut jump = |yes| {
                at += usize::from(if yes { instruction.jt } else { instruction.jf });
            };
            match u32::from(instruction.code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => loaded = data[k as usize / 4],
                code if code == BPF_ALU | BPF_AND | BPF_K => loaded &= k,
                code if code == BPF_JMP | BPF_JEQ | BPF_K => jump(loaded == k),
                code if code == BPF_JMP | BPF_JGE | BPF_K => jump(loaded >= k),
                code if code == BPF_JMP | libc::BPF_JA => at += k as usize,
                code if code == BPF_RET | BPF_K => return k,
                code => panic!("instruction {code:#x}"),
            }
            at += 1;
        }
    }

    /// Returns seccompiler's program for the same calls.
    fn oracle(calls: &[Call]) -> BpfProgram {
        let rule = |test: &Test| {
            let comparison = SeccompCmpOp::MaskedEq(test.mask.into());
            let width = SeccompCmpArgLen::Dword;
            let argument = test.argument.try_into().unwrap();
            let value = test.value.into();
            let condition = SeccompCondition::new(argument, width, comparison, value).unwrap();
            SeccompRule::new(vec![condition]).unwrap()
        };
        let rules = calls
            .iter()
            .map(|call| match &call.verdict {
                Verdict::If(tests) => (call.number.into(), tests.iter().map(rule).collect()),
                _ => (call.number.into(), Vec::new()),
            })
            .collect();
        let (otherwise, allow) = (SeccompAction::Trap, SeccompAction::Allow);
        let filter = SeccompFilter::new(rules, otherwise, allow, ARCH.try_into().unwrap());
        filter.unwrap().try_into().unwrap()
    }

    fn list(numbers: &[libc::c_long], tests: impl Fn(u32) -> Vec<Test>) -> Vec<Call> {
        let numbers = numbers.iter().map(|number| u32::try_from(*number).unwrap());
        let call = |number| Call {
            number,
            verdict: match tests(number) {
                tests if tests.is_empty() => Verdict::Allowed,
                tests => Verdict::If(tests),
            },
        };
        numbers.map(call).collect()
    }

    fn tests() -> Vec<Test> {
        let test = |argument, mask, value| Test {
            argument,
            mask,
            value,
        };
        vec![
            test(1, u32::MAX, 0x8004_ae80),
            test(1, u32::MAX, 1),
            test(2, 4, 0),
            test(5, 6, 2),
        ]
    }

    #[test]
    fn a_filters_verdicts_are_seccompilers() {
        let numbers = [
            SYS_statx, SYS_read, SYS_ioctl, SYS_futex, SYS_mmap, SYS_fcntl,
        ];
        let some = |number| tests().into_iter().take(number as usize % 5).collect();
        let mut asked = 0;
        for count in 1..=numbers.len() {
            let calls = list(&numbers[..count], some);
            let oracle = oracle(&calls);
            let program = program(calls).unwrap();
            let numbers = (0..500).chain([u32::MAX, 0x4000_0000, 0x4000_0009, 1 << 31]);
            for number in numbers {
                for architecture in [ARCHITECTURE, 0x4000_0003] {
                    for values in [[0, 0, 0], [0x8004_ae80, 4, 0], [1, 4, 2], [2, 5, 7]] {
                        for upper in [0, 1] {
                            let mut data = [upper; 16];
                            data[..2].copy_from_slice(&[number, architecture]);
                            (data[6], data[8], data[14]) = (values[0], values[1], values[2]);
                            assert_eq!(
                                verdict(&program, &data),
                                verdict(&oracle, &data),
                                "{number} of {architecture:#x}, {values:x?}"
                            );
                            asked += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(asked, 6 * 504 * 2 * 4 * 2);
    }

    #[test]
    fn an_empty_filter_allows_no_call() {
        let mut data = [0; 16];
        data[1] = ARCHITECTURE;
        assert_eq!(
            verdict(&program(Vec::new()).unwrap(), &data),
            SECCOMP_RET_TRAP
        );
    }

    #[test]
    fn a_filter_can_have_a_call_that_the_kernel_lacks() {
        let mut calls = list(&[SYS_read, SYS_statx], |_| Vec::new());
        calls.push(Call {
            number: SYS_futex as u32,
            verdict: Verdict::Unknown,
        });
        let program = program(calls).unwrap();
        let mut data = [0; 16];
        data[1] = ARCHITECTURE;
        for (number, expected) in [
            (SYS_read, SECCOMP_RET_ALLOW),
            (SYS_futex, UNKNOWN),
            (SYS_ioctl, SECCOMP_RET_TRAP),
        ] {
            data[0] = number as u32;
            assert_eq!(verdict(&program, &data), expected);
        }
    }

    #[test]
    fn a_filter_that_is_too_long_is_refused() {
        let numbers: Vec<_> = (0..400).collect();
        assert!(program(list(&numbers, |_| tests())).is_err());
    }
}
