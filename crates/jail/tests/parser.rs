//! Tests the calls of parsers: what they return, and what a parser that was taken over can reach.
//!
//! This program is its own worker. The worker makes each attempt from inside.

#[path = "parser/attempts.rs"]
mod attempts;
#[path = "parser/calls.rs"]
mod calls;

use libtest_mimic::{Arguments, run};
use micabox_jail::{Kind, run_if_worker};

fn main() {
    run_if_worker(&[
        Kind::parser::<attempts::Attempt>(),
        Kind::parser::<calls::Task>(),
    ]);
    calls::run_if_owner();
    let mut trials = attempts::trials();
    trials.extend(calls::trials());
    run(&Arguments::from_args(), trials).exit();
}
