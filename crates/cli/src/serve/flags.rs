//! The options of a request as the flags of `mica run` about sandboxes, which are thereby all there, with the same
//! checks and messages.

use std::error::Error;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::{Map, Value};

use super::message::Create;
use crate::failure::Failure;
use crate::run::{SandboxArgs, refusal};
use crate::usage;

/// A sandbox that runs no command of its own.
#[derive(Debug, Parser)]
#[command(name = "create", disable_help_flag = true)]
pub struct Wanted {
    /// The options that are given, by their long names.
    #[arg(skip)]
    pub given: Vec<String>,
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
    read(words).map_err(|error| {
        let said = refusal(&error).or_else(|| about_option(&error));
        let said = said.unwrap_or_else(|| by_name(&usage::text(&error)));
        // Its usage is about a command line.
        let said = said.split("\n\n").next().unwrap_or_default();
        invalid(said.trim_start_matches("error: ").trim_end())
    })
}

fn read(words: Vec<String>) -> Result<Wanted, clap::Error> {
    let mut command = Wanted::command();
    let matches = command.try_get_matches_from_mut(words)?;
    let mut wanted = Wanted::from_arg_matches(&matches)?;
    let given = command.get_arguments().filter(|argument| {
        matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
    });
    wanted.given = given
        .filter_map(|argument| argument.get_long().map(str::to_owned))
        .collect();
    Ok(wanted)
}

/// Names options as a request does, in one line: `memory`, and not '--memory <SIZE>'.
fn by_name(said: &str) -> String {
    let message = said.split("\n\n").next().unwrap_or_default();
    let mut lines = message.lines();
    let what = lines.next().unwrap_or_default();
    let listed = lines.map(|line| {
        let name = line.trim().split([' ', '=']).next().unwrap_or_default();
        let name = name
            .trim_start_matches('-')
            .trim_matches(['[', ']', '<', '>']);
        format!("`{}`", name.to_lowercase())
    });
    let listed: Vec<_> = listed.collect();
    format!("{} {}", quoted(what), listed.join(", "))
}

fn quoted(said: &str) -> String {
    let mut parts = said.split("'--");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (flag, rest) = part.split_once('\'').unwrap_or((part, ""));
        let name = flag.split([' ', '=', '[']).next().unwrap_or_default();
        text.extend(["`", name, "`", rest]);
    }
    text
}

/// Returns the message about an option that no sandbox has, or about its value: a request has no flags.
fn about_option(error: &clap::Error) -> Option<String> {
    use clap::error::ErrorKind;
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let flag = text(ContextKind::InvalidArg)?;
    let name = flag.split(['=', ' ']).next()?.trim_start_matches('-');
    let why = match (error.kind(), error.get(ContextKind::ValidValue)) {
        (ErrorKind::UnknownArgument, _) => {
            return Some(format!(
                "unknown option `{name}`: `mica run --help` lists a sandbox's options"
            ));
        }
        (ErrorKind::InvalidValue, _) if text(ContextKind::InvalidValue) == Some("") => {
            return Some(format!("option `{name}` needs a value"));
        }
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(valid))) => {
            format!("expected one of {}", valid.join(", "))
        }
        (ErrorKind::ValueValidation, _) => error.source()?.to_string(),
        _ => return None,
    };
    let value = text(ContextKind::InvalidValue)?;
    Some(format!("option `{name}` can't be `{value}`: {why}"))
}

fn flag(name: &str) -> String {
    name.replace('_', "-")
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::of_kind(micabox::ErrorKind::Invalid, message)
}

fn options(options: &Map<String, Value>) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    let command = Wanted::command();
    // Such a flag may be on by default, and takes a value only to be switched off.
    let is_switch = |name: &str| {
        let mut arguments = command.get_arguments();
        let argument = arguments.find(|argument| argument.get_long() == Some(name));
        let values = argument.and_then(clap::Arg::get_num_args);
        values.is_some_and(|count| count.min_values() == 0 && count.max_values() > 0)
    };
    for (name, value) in options {
        let name = flag(name);
        match value {
            Value::Null => {}
            Value::Bool(false) if is_switch(&name) => words.push(format!("--{name}=false")),
            Value::Bool(false) => {}
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

#[cfg(test)]
mod tests {
    use micabox_spec::options::{Kind, OPTIONS};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_off_is_off_also_if_it_is_on_by_default() {
        let sandbox = |options: Value| {
            let create = json!({"image": "box", "options": options});
            parse(&serde_json::from_value(create).unwrap())
                .unwrap()
                .sandbox
        };
        let off = sandbox(json!({"init": false, "lazy": false, "rm": false, "read_only": false}));
        assert!(!off.machine.init && off.machine.lazy == Some(false));
        assert!(!off.is_forgotten() && !off.read_only);
        // Elsewhere it says nothing.
        let nothing =
            sandbox(json!({"hostname": false, "env": false, "memory": false, "label": false}));
        assert!(nothing.hostname.is_none() && nothing.env.is_empty() && nothing.label.is_empty());
        let on = sandbox(json!({"init": true, "lazy": true, "rm": true, "read_only": true}));
        assert!(on.machine.init && on.machine.lazy == Some(true));
        assert!(on.is_forgotten() && on.read_only);
    }

    #[test]
    fn the_options_of_sdks_are_the_flags_of_sandboxes() {
        let command = Wanted::command();
        let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
        let mut flags: Vec<_> = flags.filter_map(|flag| flag.get_long()).collect();
        // Nothing is printed that it could silence.
        flags.retain(|flag| *flag != "quiet");
        let mut options: Vec<_> = OPTIONS.iter().map(|option| option.name).collect();
        options.sort_unstable();
        flags.sort_unstable();
        assert_eq!(options, flags);
        for option in OPTIONS {
            assert!(option.help.contains("Default: "), "{}", option.name);
            let takes_values = |flag: &clap::Arg| flag.get_action().takes_values();
            let flag = command
                .get_arguments()
                .find(|flag| flag.get_long() == Some(option.name));
            let flag = flag.unwrap();
            match option.kind {
                Kind::Flag => {
                    let can_be_said_alone = flag
                        .get_num_args()
                        .is_none_or(|count| count.min_values() == 0);
                    assert!(!takes_values(flag) || can_be_said_alone, "{}", option.name);
                }
                Kind::OneOf(words) => {
                    let values = flag.get_possible_values();
                    let values: Vec<_> = values.iter().map(|value| value.get_name()).collect();
                    assert_eq!(words, values, "{}", option.name);
                }
                Kind::List | Kind::Map => {
                    assert!(
                        matches!(flag.get_action(), clap::ArgAction::Append),
                        "{}",
                        option.name
                    );
                }
                Kind::Text | Kind::Count | Kind::Number => {
                    assert!(
                        matches!(flag.get_action(), clap::ArgAction::Set),
                        "{}",
                        option.name
                    );
                }
            }
        }
    }

    #[test]
    fn the_message_about_an_option_is_in_the_words_of_a_request() {
        let message = |options: Value| {
            let create = json!({"image": "box", "options": options});
            let refused = parse(&serde_json::from_value(create).unwrap()).unwrap_err();
            refused.message().to_owned()
        };
        for (options, begin) in [
            (
                json!({"memory": "lots"}),
                "option `memory` can't be `lots`: ",
            ),
            (json!({"cpus": 65}), "option `cpus` can't be `65`: "),
            (
                json!({"backend": "cloud"}),
                "option `backend` can't be `cloud`: expected one of auto, ",
            ),
            (json!({"no_such": true}), "unknown option `no-such`: "),
            (json!({"name": true}), "option `name` needs a value"),
            (
                json!({"from": "x", "upper": "disk"}),
                "the argument `from` cannot be used with",
            ),
        ] {
            let message = message(options);
            assert!(message.starts_with(begin), "{message}");
            assert_eq!(message.trim(), message);
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
