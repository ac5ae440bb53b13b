//! Docker's flags that `mica run` does not have, with the reason for each.
//!
//! The table is a page for users as well. It is one text, which costs a start of mica nothing: it is
//! read after the command line was found to be wrong.

use clap::error::{ContextKind, ContextValue, ErrorKind};

const TABLE: &str = include_str!("../../docker-run.md");

/// Returns the message for a flag or a network of Docker's that is not here, if that is what is
/// wrong with the command line of `mica run`.
pub fn refusal(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg)?;
    let flag = match error.kind() {
        ErrorKind::UnknownArgument => argument.split('=').next()?,
        ErrorKind::InvalidValue if argument.starts_with("--net ") => {
            match text(ContextKind::InvalidValue)? {
                "host" => "--network host",
                _ => "--network NAME",
            }
        }
        _ => return None,
    };
    let reason = reason(flag)?;
    Some(format!("`{flag}` is not supported: {reason}"))
}

/// Returns why a flag of Docker's is not here.
fn reason(flag: &str) -> Option<&'static str> {
    let (_, here) = rows().find(|(flags, _)| flags.split(", ").any(|known| known == flag))?;
    here.strip_prefix("no: ")
}

/// Returns the table's rows: flags, without quotes, and what is said of them.
fn rows() -> impl Iterator<Item = (String, &'static str)> {
    TABLE.lines().filter_map(|line| {
        let cells = line.strip_prefix("| `")?.strip_suffix(" |")?;
        let (flags, here) = cells.split_once("` | ")?;
        Some((flags.replace('`', ""), here))
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
        for (flags, here) in rows() {
            let is_here = here.starts_with("yes");
            assert!(is_here || here.starts_with("no: "), "{flags}: {here}");
            for flag in flags.split(", ") {
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

    /// Docker's own help is the list, where it is installed.
    #[test]
    fn no_flag_of_dockers_is_missing() {
        let Ok(help) = Command::new("docker").args(["run", "--help"]).output() else {
            return;
        };
        let help = String::from_utf8(help.stdout).unwrap();
        let known: Vec<String> = rows().map(|(flags, _)| flags).collect();
        for line in help.lines() {
            let Some(at) = line
                .find("--")
                .filter(|at| *at <= 6 && line.starts_with("  "))
            else {
                continue;
            };
            let flag = line[at..].split_whitespace().next().unwrap();
            let is_known = |flags: &String| flags.split(", ").any(|known| known == flag);
            assert!(flag == "--help" || known.iter().any(is_known), "{flag}");
        }
    }
}
