//! Flags that are on or off, with Docker's syntax: `--tty`, `--tty=true`, `-i=false`; and values that begin with `-`.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, Parser};

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

/// Parses a value as Docker does.
pub fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" => Some(true),
        "0" | "f" | "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: super::super::Args,
    }

    fn parsed(words: &[&str]) -> Result<super::super::Args, clap::Error> {
        let words = std::iter::once("run").chain(words.iter().copied());
        parse::<Cli>(words.map(OsString::from)).map(|cli| cli.args)
    }

    #[test]
    fn a_flag_may_say_that_it_is_on_or_off() {
        for (words, wanted) in [
            (&["-it"][..], [true, true]),
            (&["-i=true", "-t=false"], [true, false]),
            (&["--tty=false", "--interactive=1"], [true, false]),
            (&["-it", "--tty=F"], [true, false]),
            (&["--tty=TRUE", "-i"], [true, true]),
            (&["-it", "-it"], [true, true]),
            (&[], [false, false]),
        ] {
            let args = parsed(&[words, &["--read-only=false", "box", "--tty=x"]].concat()).unwrap();
            assert_eq!([args.command.interactive, args.command.tty], wanted);
            assert!(!args.sandbox.read_only);
            assert_eq!(args.argv(), ["--tty=x"]);
        }
        // A value may begin with a hyphen, but what is a flag of ours is one.
        let args = parsed(&["--name", "-x", "-e", "-y=1", "-it", "box", "-t"]).unwrap();
        assert_eq!(args.sandbox.name.as_deref(), Some("-x"));
        assert!(args.command.tty && args.sandbox.env == ["-y=1"]);
        for words in [&["--name", "--rm", "box"][..], &["--bogus", "box"]] {
            parsed(words).unwrap_err();
        }
        let error = parsed(&["--tty=perhaps", "box"]).unwrap_err().to_string();
        assert!(
            error.contains("'perhaps'") && error.contains("--tty"),
            "{error}"
        );
    }
}
