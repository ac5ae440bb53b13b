//! The options of a request as the flags of `mica run` about sandboxes, which are thereby all there, with the same
//! checks and messages.

use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use serde_json::{Map, Value};

use super::message::Create;
use crate::failure::Failure;
use crate::run::{SandboxArgs, refusal};

/// A sandbox that runs no command of its own.
#[derive(Debug, Parser)]
#[command(name = "create", disable_help_flag = true)]
pub struct Wanted {
    /// What it is made of.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// The image's name.
    #[arg(
        required_unless_present_any = ["from", "root_disk"],
        conflicts_with_all = ["from", "root_disk"]
    )]
    pub image: Option<String>,
}

/// Returns the flags of a request.
pub fn parse(create: &Create) -> Result<Wanted, Failure> {
    let mut words = vec!["create".to_owned()];
    words.extend(options(&create.options)?);
    words.push("--".to_owned());
    words.extend(create.image.clone());
    Wanted::try_parse_from(words).map_err(|error| {
        let said = refusal(&error).or_else(|| unknown(&error));
        let said = said.unwrap_or_else(|| error.to_string());
        // Its usage is about a command line.
        let said = said.split("\n\n").next().unwrap_or_default();
        invalid(said.trim_start_matches("error: "))
    })
}

/// Returns the message for an option that no sandbox has.
fn unknown(error: &clap::Error) -> Option<String> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (clap::error::ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => {
            let name = flag.split('=').next()?.trim_start_matches('-');
            Some(format!(
                "unknown option `{name}`: `mica run --help` lists a sandbox's options"
            ))
        }
        _ => None,
    }
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
