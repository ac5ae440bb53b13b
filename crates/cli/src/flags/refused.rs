//! Flags of Docker's that are not here: the reason for each is in [`dockers`].

use clap::error::{ContextKind, ContextValue, ErrorKind};
use micabox_creation::dockers;

/// Returns the message for a flag, a value or a network of Docker's that is not here, if that is what is
/// wrong with the command line of `mica run`.
pub fn refusal(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg)?;
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    let flag = argument.split(['=', ' ', '[']).next()?;
    match error.kind() {
        ErrorKind::UnknownArgument => dockers::unsupported(flag),
        ErrorKind::InvalidValue if flag == dockers::NETWORK => dockers::value(flag, value),
        ErrorKind::ValueValidation => dockers::value(flag, value),
        _ => None,
    }
}
