//! Docker's flags, and those that `mica run` does not have or takes with some values only, with the reason for each.
//!
//! The table is a page for users as well.

use micabox::words::boolean;
use micabox_spec::options::OptionError;

const TABLE: &str = include_str!("../../../docs/docker-run.md");

/// Its values are Docker's networks.
pub const NETWORK: &str = "--net";

/// Returns the message for an option of Docker's, or a value of one, that is not here, if that is what is wrong.
pub fn refused_option(error: &OptionError) -> Option<String> {
    match error {
        OptionError::Unknown(name) => unsupported(&format!("--{name}")),
        OptionError::Value { name, value, .. } => self::value(&format!("--{name}"), value),
        OptionError::Invalid(_) | OptionError::Unfit(_) => None,
    }
}

/// Returns the message for a flag of Docker's that is not here.
pub fn unsupported(flag: &str) -> Option<String> {
    let reason = row(flag)?.here.strip_prefix("no: ")?;
    Some(format!("`{flag}` is not supported: {reason}"))
}

/// Returns the message for a value of Docker's that a flag does not have here.
pub fn value(flag: &str, value: &str) -> Option<String> {
    if flag == NETWORK {
        return unsupported(match value {
            "host" => "--network host",
            _ => "--network NAME",
        });
    }
    let here = row(flag)?.here;
    let (_, reason) = here.strip_prefix("only ")?.split_once(": ")?;
    let what = match boolean(value) {
        Some(_) => flag.to_owned(),
        None => format!("{flag} {value}"),
    };
    Some(format!("`{what}` is not supported: {reason}"))
}

fn row(flag: &str) -> Option<Row> {
    rows().find(|row| row.flags().any(|known| known == flag))
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    flags: &'static str,
    /// What they do here.
    pub here: &'static str,
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
