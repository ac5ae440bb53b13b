//! Seccompiler's programs are an oracle for ours.

use std::env::consts::ARCH;

use libc::{SYS_fcntl, SYS_futex, SYS_ioctl, SYS_mmap, SYS_read, SYS_statx};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::*;
use crate::interpret::{self, Call};

const UNKNOWN: Verdict = Verdict::Fail(libc::ENOSYS as u16);

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap()
}

fn traps() -> Filter {
    Filter::new(Verdict::Trap, Verdict::KillProcess)
}

/// Returns a filter that allows calls, with these tests.
fn list(numbers: impl IntoIterator<Item = u32>, tests: impl Fn(u32) -> Vec<Test>) -> Filter {
    let mut filter = traps();
    for number in numbers {
        let rule = match tests(number) {
            tests if tests.is_empty() => Rule::Always(Verdict::Allow),
            tests => Rule::If {
                tests,
                then: Verdict::Allow,
                otherwise: Verdict::Trap,
            },
        };
        filter.rules.insert(number, rule);
    }
    filter
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

/// Returns seccompiler's program for the same calls.
fn oracle(filter: &Filter) -> Vec<Instruction> {
    let rule = |test: &Test| {
        let comparison = SeccompCmpOp::MaskedEq(test.mask.into());
        let width = SeccompCmpArgLen::Dword;
        let argument = test.argument.try_into().unwrap();
        let condition = SeccompCondition::new(argument, width, comparison, test.value.into());
        SeccompRule::new(vec![condition.unwrap()]).unwrap()
    };
    let rules = filter.rules.iter().map(|(number, known)| match known {
        Rule::If { tests, .. } => ((*number).into(), tests.iter().map(rule).collect()),
        Rule::Always(_) => ((*number).into(), Vec::new()),
    });
    let (otherwise, allow) = (SeccompAction::Trap, SeccompAction::Allow);
    let filter = SeccompFilter::new(rules.collect(), otherwise, allow, ARCH.try_into().unwrap());
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    let ours = |theirs: seccompiler::sock_filter| Instruction {
        code: theirs.code,
        jt: theirs.jt,
        jf: theirs.jf,
        k: theirs.k,
    };
    program.into_iter().map(ours).collect()
}

fn judged(program: &[Instruction], call: &Call) -> u32 {
    interpret::verdict(program, call).unwrap()
}

#[test]
fn a_filters_verdicts_are_seccompilers() {
    let numbers = [
        SYS_statx, SYS_read, SYS_ioctl, SYS_futex, SYS_mmap, SYS_fcntl,
    ];
    let some = |number| tests().into_iter().take(number as usize % 5).collect();
    let mut asked = 0;
    for count in 1..=numbers.len() {
        let filter = list(numbers[..count].iter().copied().map(number), some);
        let (program, oracle) = (filter.program().unwrap(), oracle(&filter));
        let numbers = (0..500).chain([u32::MAX, 0x4000_0000, 0x4000_0009, 1 << 31]);
        for number in numbers {
            for architecture in [ARCHITECTURE, 0x4000_0003] {
                for values in [[0, 0, 0], [0x8004_ae80, 4, 0], [1, 4, 2], [2, 5, 7]] {
                    for upper in [0, 1 << 32] {
                        let mut call = Call::new(number, [upper; 6]);
                        call.architecture = architecture;
                        for (argument, value) in [1, 2, 5].into_iter().zip(values) {
                            call.arguments[argument] |= value;
                        }
                        let (ours, theirs) = (judged(&program, &call), judged(&oracle, &call));
                        assert_eq!(ours, theirs, "{call:x?}");
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
    let program = traps().program().unwrap();
    for number in [0, u32::MAX] {
        let call = Call::new(number, [0; 6]);
        assert_eq!(judged(&program, &call), Verdict::Trap.value());
    }
}

#[test]
fn a_filter_can_have_a_call_that_the_kernel_lacks() {
    let mut filter = list([SYS_read, SYS_statx].map(number), |_| Vec::new());
    let futex = number(SYS_futex);
    filter.rules.insert(futex, Rule::Always(UNKNOWN));
    let program = filter.program().unwrap();
    for (call, expected) in [
        (SYS_read, Verdict::Allow),
        (SYS_futex, UNKNOWN),
        (SYS_ioctl, Verdict::Trap),
    ] {
        let call = Call::new(number(call), [0; 6]);
        assert_eq!(judged(&program, &call), expected.value());
    }
}

#[test]
fn rules_reach_to_the_last_number() {
    let filter = list([0, 1, u32::MAX], |_| Vec::new());
    let program = filter.program().unwrap();
    for (number, expected) in [
        (1, Verdict::Allow),
        (2, Verdict::Trap),
        (u32::MAX - 1, Verdict::Trap),
        (u32::MAX, Verdict::Allow),
    ] {
        let call = Call::new(number, [0; 6]);
        assert_eq!(judged(&program, &call), expected.value());
    }
}

#[test]
fn a_filter_that_is_too_long_is_refused() {
    assert_eq!(
        list(0..400, |_| Vec::new())
            .program()
            .map(|program| program.len()),
        Ok(7)
    );
    let apart = (0..400).map(|number| 2 * number);
    assert_eq!(list(apart, |_| tests()).program(), Err(TooLong));
}
