//! The end of a program.

use std::process::ExitCode;

use crate::failure::Outcome;

/// Prints the failure, if there is one, and returns the exit code. Waits for processes that end, so that none is left to
/// the machine's first one.
pub fn end(result: Outcome) -> ExitCode {
    let code = result.unwrap_or_else(|failure| {
        failure.print();
        failure.code
    });
    micabox::wait_for_processes();
    ExitCode::from(code)
}
