//! Docker's flags that are taken with a value that says what mica does anyway, and with no other: scripts and tools
//! say defaults.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::booleans::boolean;
use crate::run::refused::{Row, rows};

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
