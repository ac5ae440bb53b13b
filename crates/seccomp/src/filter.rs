//! Rules for system calls, and their program.
//!
//! The program finds a call by bisection. The kernel runs a new filter once for every existing call, to learn which of
//! them are always allowed. A program of seccompiler compares with one call of the list after another, which costs
//! three times as much, and every thread of every machine pays it.

use std::collections::BTreeMap;

use crate::assemble::{Backwards, Instruction, Target, TooLong, code};
use crate::{ARCHITECTURE, ARCHITECTURE_AT, ARGUMENTS_AT, NUMBER_AT};

/// What happens with a call (`linux/seccomp.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel makes it.
    Allow,
    /// It fails with this error number.
    Fail(u16),
    /// The thread gets SIGSYS in place of it.
    Trap,
    /// The process ends.
    KillProcess,
}

impl Verdict {
    /// Returns what a program returns.
    pub const fn value(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Fail(errno) => 0x0005_0000 | errno as u32,
            Self::Trap => 0x0003_0000,
            Self::KillProcess => 0x8000_0000,
        }
    }
}

/// What a verdict depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// On nothing.
    Always(Verdict),
    /// On arguments.
    If {
        /// It is enough that one holds.
        tests: Vec<Test>,
        /// The verdict then.
        then: Verdict,
        /// The verdict otherwise.
        otherwise: Verdict,
    },
}

/// Tests that the lower half of an argument is `value` where `mask` has ones. The upper half is not looked at: the
/// arguments that filters look at have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// The argument, from 0 to 5.
    pub argument: u32,
    /// The bits that are compared.
    pub mask: u32,
    /// What they are to be.
    pub value: u32,
}

/// Rules for system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// By the calls' numbers.
    pub rules: BTreeMap<u32, Rule>,
    /// The verdict on calls without a rule.
    pub otherwise: Verdict,
    /// The verdict on calls of other architectures ([`ARCHITECTURE`]).
    pub foreign: Verdict,
}

impl Filter {
    /// Returns a filter without rules.
    pub fn new(otherwise: Verdict, foreign: Verdict) -> Self {
        Self {
            rules: BTreeMap::new(),
            otherwise,
            foreign,
        }
    }

    /// Compiles it for the kernel.
    ///
    /// # Errors
    /// [`TooLong`], from some 120 rules that are not in a row on.
    pub fn program(&self) -> Result<Vec<Instruction>, TooLong> {
        let mut program = Program::default();
        let otherwise = Rule::Always(self.otherwise);
        let runs = self.runs(&otherwise);
        for (_, rule) in &runs {
            match rule {
                Rule::Always(verdict) => program.end(*verdict),
                Rule::If {
                    then, otherwise, ..
                } => {
                    program.end(*then);
                    program.end(*otherwise)
                }
            };
        }
        let foreign = program.end(self.foreign);
        let search = program.bisect(&runs)?;
        let text = &mut program.text;
        text.go(search)?;
        let load = text.put(code::LOAD, NUMBER_AT);
        text.jump(code::IF_EQUAL, ARCHITECTURE, load, foreign)?;
        text.put(code::LOAD, ARCHITECTURE_AT);
        Ok(program.text.program())
    }

    /// Returns runs of calls with one rule, each with its first number. The first begins at 0.
    fn runs<'a>(&'a self, otherwise: &'a Rule) -> Vec<(u32, &'a Rule)> {
        let mut runs: Vec<(u32, &Rule)> = Vec::new();
        let mut add = |number, rule| {
            if runs.last().is_none_or(|(_, last)| *last != rule) {
                runs.push((number, rule));
            }
        };
        let mut next = Some(0);
        for (number, rule) in &self.rules {
            if let Some(gap) = next.filter(|next| next < number) {
                add(gap, otherwise);
            }
            add(*number, rule);
            next = number.checked_add(1);
        }
        if let Some(rest) = next {
            add(rest, otherwise);
        }
        runs
    }
}

/// A program under construction, and the return instructions that a search ends at.
#[derive(Default)]
struct Program {
    text: Backwards,
    ends: Vec<(Verdict, Target)>,
}

impl Program {
    /// Returns the instruction that returns a verdict. There is one for each verdict.
    fn end(&mut self, verdict: Verdict) -> Target {
        if let Some((_, target)) = self.ends.iter().find(|(known, _)| *known == verdict) {
            return *target;
        }
        let target = self.text.put(code::RETURN, verdict.value());
        self.ends.push((verdict, target));
        target
    }

    /// Adds the search for the loaded number; returns its first instruction.
    fn bisect(&mut self, runs: &[(u32, &Rule)]) -> Result<Target, TooLong> {
        let (lower, upper) = runs.split_at(runs.len() / 2);
        match (lower, upper) {
            ([], [(_, rule), ..]) => self.judge(rule),
            (_, [(first, _), ..]) => {
                let lower = self.bisect(lower)?;
                let upper = self.bisect(upper)?;
                self.text.jump(code::IF_AT_LEAST, *first, upper, lower)
            }
            (_, []) => Err(TooLong), // there is always a run
        }
    }

    /// Adds what a rule takes; returns its first instruction.
    fn judge(&mut self, rule: &Rule) -> Result<Target, TooLong> {
        match rule {
            Rule::Always(verdict) => Ok(self.end(*verdict)),
            Rule::If {
                tests,
                then,
                otherwise,
            } => {
                let (then, otherwise) = (self.end(*then), self.end(*otherwise));
                self.test(tests, then, otherwise)
            }
        }
    }

    /// Adds tests of arguments; returns their first instruction. Those of the same bits load them once.
    fn test(&mut self, tests: &[Test], then: Target, otherwise: Target) -> Result<Target, TooLong> {
        let mut next = otherwise;
        let same =
            |one: &Test, other: &Test| (one.argument, one.mask) == (other.argument, other.mask);
        for group in tests.chunk_by(same).rev() {
            for test in group.iter().rev() {
                next = self.text.jump(code::IF_EQUAL, test.value, then, next)?;
            }
            if let Some(Test { argument, mask, .. }) = group.first() {
                if *mask != u32::MAX {
                    self.text.put(code::AND, *mask);
                }
                let offset = ARGUMENTS_AT + 8 * argument;
                next = self.text.put(code::LOAD, offset);
            }
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests;
