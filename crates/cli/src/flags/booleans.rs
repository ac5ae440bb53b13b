//! Flags that are on or off, with Docker's syntax: `--tty`, `--tty=true`, `-i=false`; and values that begin with `-`.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, Parser};
use micabox::words::boolean;

/// Parses a command line in which such flags may have a value, and all others one that begins with `-`, which their
/// own parsers take or refuse.
///
/// clap's flags have none, and those with an optional value show it in `--help`, for each of them. So they get one
/// only where the command line is wrong without. And a flag of ours is taken for a forgotten value only there.
pub fn parse<C: Parser>(words: impl IntoIterator<Item = OsString>) -> Result<C, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    C::try_parse_from(&words).or_else(|error| match error.kind() {
        // A value that was not expected, after a long or a short flag.
        ErrorKind::TooManyValues | ErrorKind::UnknownArgument => {
            let matches = with_values(C::command()).try_get_matches_from(words);
            let parsed = matches.and_then(|matches| C::from_arg_matches(&matches));
            parsed.map_err(|second| match second.kind() {
                // It says which flag has the wrong value.
                ErrorKind::ValueValidation => second,
                _ => error,
            })
        }
        _ => Err(error),
    })
}

fn with_values(command: Command) -> Command {
    command.mut_args(with_value).mut_subcommands(with_values)
}

fn with_value(flag: Arg) -> Arg {
    match flag.get_action() {
        ArgAction::SetTrue => {}
        ArgAction::Set | ArgAction::Append if !flag.is_positional() => {
            return flag.allow_hyphen_values(true);
        }
        _ => return flag,
    }
    flag.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .default_value("false")
        .default_missing_value("true")
        .value_parser(|text: &str| boolean(text).ok_or("expected true or false"))
}
