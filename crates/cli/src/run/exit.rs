//! mica's exit code, from how a command ended.

use micabox::{Error, Handle};

use micabox_program::failure::{EXIT_MICA, Failure};

/// Returns the exit code of what a signal has ended, as shells have it.
pub fn exit_code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(EXIT_MICA)
}

/// Returns the failure of a command that could not be started, with the exit code that says why.
pub fn start_failure(error: Error) -> Failure {
    match error {
        Error::Start(failed) => {
            let code = u8::try_from(failed.exit_code()).unwrap_or(EXIT_MICA);
            Failure::from(Error::Start(failed)).code(code)
        }
        error => error.into(),
    }
}

/// Returns the failure of a command whose output could not be written to mica's, if it is one.
pub fn unwritten(handle: &Handle) -> Option<Failure> {
    let why = handle.unwritten()?;
    Some(Failure::new(format!("writing the command's output: {why}")).code(EXIT_MICA))
}
