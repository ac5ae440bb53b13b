//! Docker's flags that are taken with a value that says what mica does anyway, and with no other: scripts and tools
//! say defaults.

use clap::{Arg, ArgAction, ArgMatches, Command};
use micabox::words::boolean;

use micabox_creation::dockers::{Row, rows};

/// Those flags, of which nothing follows.
#[derive(Debug)]
pub struct Defaults;

impl clap::FromArgMatches for Defaults {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

impl clap::Args for Defaults {
    fn augment_args(command: Command) -> Command {
        rows().fold(command, |command, row| match row.accepted() {
            Some(accepted) => command.arg(argument(&row, accepted)),
            None => command,
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(row: &Row, accepted: Vec<&'static str>) -> Arg {
    let mut long = row.flags().filter_map(|flag| flag.strip_prefix("--"));
    let long = long.next().unwrap_or_default();
    let mut short = row.flags().filter(|flag| !flag.starts_with("--"));
    let short = short.find_map(|flag| flag.chars().nth(1));
    let is_boolean = accepted
        .iter()
        .all(|value| boolean(value).is_some() && value.len() > 1);
    let takes = move |value: &str| {
        let is_meant = |known: &&str| match boolean(known).filter(|_| is_boolean) {
            None => value == *known,
            known => boolean(value) == known,
        };
        if accepted.iter().any(is_meant) {
            Ok(())
        } else {
            Err("it is not supported")
        }
    };
    let argument = Arg::new(long)
        .long(long)
        .short(short)
        .hide(true)
        .action(ArgAction::Append)
        .allow_negative_numbers(true)
        .value_parser(takes);
    if is_boolean {
        argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
    } else {
        argument
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::CommandFactory;

    use super::*;
    use crate::flags::refusal;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: super::super::Args,
    }

    fn error(words: &[&str]) -> clap::Error {
        let words = std::iter::once(&"run").chain(words);
        let Err(error) = <Cli as clap::Parser>::try_parse_from(words) else {
            panic!("it is valid");
        };
        error
    }

    #[test]
    fn every_row_says_what_happens() {
        let command = Cli::command();
        let has = |flag: &str| {
            command.get_arguments().any(|argument| {
                let long = argument.get_long_and_visible_aliases().unwrap_or_default();
                let hidden = argument.get_all_aliases().unwrap_or_default();
                let short = argument.get_short().map(|short| format!("-{short}"));
                let name = flag.trim_start_matches("--");
                long.contains(&name) || hidden.contains(&name) || short.as_deref() == Some(flag)
            })
        };
        for row in rows() {
            let here = row.here;
            if let Some(values) = row.accepted() {
                takes_only(row, &values);
                continue;
            }
            let is_here = here.starts_with("yes");
            assert!(is_here || here.starts_with("no: "), "{row:?}");
            for flag in row.flags() {
                assert_eq!(has(flag), is_here, "{flag}: {here}");
                if is_here || flag.contains(' ') {
                    continue;
                }
                for words in [&[flag, "x", "box"][..], &[&format!("{flag}=x"), "box"]] {
                    let failure = refusal(&error(words));
                    let wanted = format!("`{flag}` is not supported: {}", &here["no: ".len()..]);
                    assert_eq!(failure, Some(wanted));
                }
            }
        }
        for (network, wanted) in [("host", "interfaces"), ("mine", "no networks between")] {
            let failure = refusal(&error(&["--network", network, "box"])).unwrap();
            assert!(failure.contains(wanted), "{failure}");
        }
        assert!(refusal(&error(&["--bogus", "box"])).is_none());
    }

    /// Checks that flags are taken with these values, and refused with others.
    fn takes_only(row: Row, values: &[&str]) {
        let parse = |word: &str| {
            let words = ["run", word, "box"];
            <Cli as clap::Parser>::try_parse_from(words).map(|cli| cli.args)
        };
        let (_, reason) = row.here.split_once(": ").unwrap();
        let long = row.flags().last().unwrap();
        for flag in row.flags() {
            for value in values {
                let args = parse(&format!("{flag}={value}")).unwrap();
                assert_eq!(args.image().unwrap(), Some("box"), "{flag}={value}");
            }
            let is_switch = values.iter().all(|value| ["true", "false"].contains(value));
            let (words, what) = match values {
                ["false"] => (vec![flag.to_owned()], flag.to_owned()),
                _ => (vec![format!("{flag}=other")], format!("{long} other")),
            };
            let failure = words.iter().map(|word| refusal(&parse(word).unwrap_err()));
            let wanted = format!("`{what}` is not supported: {reason}");
            assert!(failure.eq([Some(wanted)]), "{flag}");
            if !is_switch {
                let words = ["run", flag, values[0], "box"];
                <Cli as clap::Parser>::try_parse_from(words).unwrap();
            }
        }
    }

    /// Docker's own help is the list, where it is installed.
    #[test]
    fn no_flag_of_dockers_is_missing() {
        let Ok(help) = Command::new("docker").args(["run", "--help"]).output() else {
            return;
        };
        let help = String::from_utf8(help.stdout).unwrap();
        let known: Vec<&str> = rows().flat_map(|row| row.flags()).collect();
        for line in help.lines() {
            let Some(at) = line
                .find("--")
                .filter(|at| *at <= 6 && line.starts_with("  "))
            else {
                continue;
            };
            let flag = line[at..].split_whitespace().next().unwrap();
            assert!(flag == "--help" || known.contains(&flag), "{flag}");
        }
    }
}
