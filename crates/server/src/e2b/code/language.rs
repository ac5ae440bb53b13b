//! Languages of code.

use crate::e2b::problem::Problem;

/// The only one.
pub const PYTHON: &str = "python";

/// Returns the language that a client asks for, if it is there.
pub fn checked(given: Option<String>) -> Result<&'static str, Problem> {
    match given.as_deref() {
        None | Some("" | PYTHON | "python3") => Ok(PYTHON),
        Some(other) => Err(Problem::unsupported(format!(
            "code in {other:?} is not run here; commands.run takes any program"
        ))),
    }
}
