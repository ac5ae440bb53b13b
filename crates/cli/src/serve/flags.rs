//! The options of a request as the flags of `mica run`, which are thereby all there, with the same checks
//! and messages.

use clap::Parser;
use serde_json::{Map, Value};

use super::message::Create;
use crate::failure::Failure;
use crate::run::{self, refusal};

/// What is about a command and a terminal, and not about a sandbox.
const FOREIGN: [&str; 9] = [
    "interactive",
    "tty",
    "detach",
    "idle",
    "detach-keys",
    "timing",
    "timeout",
    "stop-timeout",
    "entrypoint",
];

#[derive(Debug, Parser)]
#[command(name = "create", disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    args: run::Args,
}

/// Returns the flags of a request.
pub fn parse(create: &Create) -> Result<run::Args, Failure> {
    let mut words = vec!["create".to_owned(), "--quiet".to_owned()];
    // With a snapshot it is no flag of `mica run`, whose command is simply not started here.
    if !create.options.contains_key("from") {
        words.push("--idle".to_owned());
    }
    if let Some(foreign) = create
        .options
        .keys()
        .map(|name| flag(name))
        .find(|name| FOREIGN.contains(&&**name))
    {
        return Err(invalid(format!(
            "`{foreign}` is no option of a sandbox that runs no command"
        )));
    }
    words.extend(options(&create.options)?);
    words.push("--".to_owned());
    words.extend(create.image.clone());
    let line = Line::try_parse_from(words).map_err(|error| {
        let said = refusal(&error).unwrap_or_else(|| error.to_string());
        // Its usage is about a command line.
        let said = said.split("\n\n").next().unwrap_or_default();
        invalid(said.trim_start_matches("error: "))
    })?;
    Ok(line.args)
}

fn flag(name: &str) -> String {
    name.replace('_', "-")
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::of_kind(micabox::ErrorKind::Invalid, message)
}

fn options(options: &Map<String, Value>) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    for (name, value) in options {
        let name = flag(name);
        match value {
            Value::Null | Value::Bool(false) => {}
            Value::Bool(true) => words.push(format!("--{name}")),
            Value::Array(values) => {
                for value in values {
                    words.push(format!("--{name}={}", plain(&name, value)?));
                }
            }
            Value::Object(values) => {
                for (key, value) in values {
                    words.push(format!("--{name}={key}={}", plain(&name, value)?));
                }
            }
            value => words.push(format!("--{name}={}", plain(&name, value)?)),
        }
    }
    Ok(words)
}

fn plain(name: &str, value: &Value) -> Result<String, Failure> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(invalid(format!(
            "`{name}` must be a string, a number, true, or a list or an object of strings and numbers"
        ))),
    }
}
