//! Errors of wrong command lines, in plain words.

use std::error::Error;
use std::num::{IntErrorKind, ParseIntError};

/// Returns the text of an error, with the usage of the command.
pub fn text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let Some(cause) = error.source() else {
        return text;
    };
    match cause.downcast_ref::<ParseIntError>() {
        Some(number) => text.replace(&number.to_string(), in_words(number)),
        None => text,
    }
}

/// Returns what is wrong with a number. Those of the standard library speak of digits and types.
fn in_words(error: &ParseIntError) -> &'static str {
    match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "the number is too large",
        _ => "expected a number",
    }
}
