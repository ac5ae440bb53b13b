//! Errors of wrong command lines, in plain words.

use std::error::Error;
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use micabox::ErrorKind;

use crate::failure::{Failure, cut};
use crate::output;

/// Exit code of a wrong command line, where no other is said.
pub const EXIT_USAGE: u8 = 2;

/// Prints help and version to stdout, and the error of a wrong command line to stderr; `message` in its place, if there
/// is one. Returns the exit code, `code` for an error.
pub fn refuse(error: &clap::Error, message: Option<String>, code: u8) -> ExitCode {
    if !error.use_stderr() {
        #[expect(clippy::disallowed_methods, reason = "help has no foreign text")]
        let printed = error.print();
        let Err(failure) = printed.or_else(output::unless_unread) else {
            return ExitCode::SUCCESS;
        };
        failure.print();
        return ExitCode::from(failure.code);
    }
    match message {
        Some(message) => Failure::of_kind(ErrorKind::Invalid, message).print(),
        // The error repeats arguments, which may be names of foreign files.
        None => {
            let message = cut(text(error));
            output::write_stderr(&message);
            let what = message.split("\n\n").next().unwrap_or_default();
            let what = what.trim_start_matches("error: ").trim_end();
            Failure::of_kind(ErrorKind::Invalid, what).report();
        }
    }
    ExitCode::from(code)
}

/// Returns the text of an error, with the usage of the command.
fn text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let Some(cause) = error.source() else {
        return text;
    };
    match cause.downcast_ref::<ParseIntError>() {
        Some(number) => {
            let value = error.get(ContextKind::InvalidValue);
            let is_negative =
                matches!(value, Some(ContextValue::String(value)) if value.starts_with('-'));
            text.replace(&number.to_string(), in_words(number, is_negative))
        }
        None => text,
    }
}

/// Returns what is wrong with a number. Those of the standard library speak of digits and types.
fn in_words(error: &ParseIntError, is_negative: bool) -> &'static str {
    match error.kind() {
        IntErrorKind::InvalidDigit if is_negative => "expected a number that is not negative",
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "the number is too large",
        _ => "expected a number",
    }
}

/// Most letters by which a word that is meant differs from the one that was typed.
const MOST_DIFFERENT: usize = 2;

/// Takes guesses away that are none: flags and commands that are only a little like what was typed, and that it
/// could be passed as a value, which no name of an image or a sandbox can be.
pub fn without_guesses(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value, use"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    for (typed, guessed) in [
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (
            ContextKind::InvalidSubcommand,
            ContextKind::SuggestedSubcommand,
        ),
    ] {
        let Some(ContextValue::String(typed)) = error.get(typed) else {
            continue;
        };
        let typed = typed.clone();
        let guesses = match error.remove(guessed) {
            Some(ContextValue::String(guess)) => vec![guess],
            Some(ContextValue::Strings(guesses)) => guesses,
            _ => continue,
        };
        let mut likely = guesses.into_iter().filter(|guess| is_like(&typed, guess));
        if let Some(guess) = likely.next() {
            error.insert(guessed, ContextValue::String(guess));
        }
    }
    error
}

/// Whether a word may be what was meant by another: more or less of it, or other letters in a few places.
fn is_like(typed: &str, meant: &str) -> bool {
    let word = |text: &str| {
        let text = text.split('=').next().unwrap_or_default();
        text.trim_start_matches('-').to_owned()
    };
    let (typed, meant) = (word(typed), word(meant));
    let begins = meant.starts_with(&typed) || typed.starts_with(&meant);
    begins || (typed.len() > MOST_DIFFERENT && distance(&typed, &meant) <= MOST_DIFFERENT)
}

/// Returns how many letters have to be added, removed or replaced to make one word of another (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.chars().enumerate() {
        let mut next = vec![at + 1];
        for ((other, pair), left) in to.iter().zip(row.windows(2)).zip(0..) {
            let &[diagonal, above] = pair else { continue };
            let before: usize = next.get(left).copied().unwrap_or_default();
            let replaced = diagonal + usize::from(letter != *other);
            next.push(replaced.min(above + 1).min(before + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_word_that_is_like_another_is_a_guess() {
        for (typed, meant) in [
            ("--naem", "--name"),
            ("--mem=1g", "--memory"),
            ("--networks", "--network"),
            ("strat", "start"),
            ("--pubish", "--publish"),
        ] {
            assert!(is_like(typed, meant), "{typed}");
        }
        for (typed, meant) in [
            ("--restart", "--net-rate"),
            ("search", "start"),
            ("search", "serve"),
            ("system", "store"),
        ] {
            assert!(!is_like(typed, meant), "{typed}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
