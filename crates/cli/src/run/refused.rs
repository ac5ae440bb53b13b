//! Docker's flags, and those that `mica run` does not have or takes with some values only, with the reason for each.
//!
//! The table is a page for users as well.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::boolean;

const TABLE: &str = include_str!("../../docker-run.md");

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
    let of_network = match value {
        "host" => "--network host",
        _ => "--network NAME",
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let reason = row(flag)?.here.strip_prefix("no: ")?;
            Some(format!("`{flag}` is not supported: {reason}"))
        }
        ErrorKind::InvalidValue if flag == "--net" => {
            let reason = row(of_network)?.here.strip_prefix("no: ")?;
            Some(format!("`{of_network}` is not supported: {reason}"))
        }
        ErrorKind::ValueValidation => {
            let here = row(flag)?.here;
            let (_, reason) = here.strip_prefix("only ")?.split_once(": ")?;
            let what = match boolean(value) {
                Some(_) => flag.to_owned(),
                None => format!("{flag} {value}"),
            };
            Some(format!("`{what}` is not supported: {reason}"))
        }
        _ => None,
    }
}

fn row(flag: &str) -> Option<Row> {
    rows().find(|row| row.flags().any(|known| known == flag))
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    flags: &'static str,
    /// What is said of them.
    here: &'static str,
}

impl Row {
    /// Returns the flags: one, or its short form too.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> + use<> {
        quoted(self.flags)
    }

    /// Returns the values with which the flags are taken and change nothing, if there are such values.
    pub fn accepted(&self) -> Option<Vec<&'static str>> {
        let (values, _) = self.here.strip_prefix("only ")?.split_once(": ")?;
        // Two quotes stand for nothing, as in a shell.
        Some(
            quoted(values)
                .map(|value| value.trim_matches('\''))
                .collect(),
        )
    }
}

/// Returns what is in backquotes.
fn quoted(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the table's rows.
pub fn rows() -> impl Iterator<Item = Row> {
    TABLE.lines().filter_map(|line| {
        let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let (flags, here) = cells.split_once(" | ")?;
        flags.starts_with('`').then_some(Row { flags, here })
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::CommandFactory;

    use super::*;

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
