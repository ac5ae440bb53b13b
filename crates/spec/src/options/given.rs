//! Options of requests: those of `mica run` by their long names, in an object of JSON, which serde reads into the
//! structures that flags are read into.
//!
//! An option's value is true, a string, a number, a list of these, or an object of names and values, of which each is
//! `NAME=VALUE`. A switch may be false; elsewhere that sets nothing, as null does everywhere.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::document::Structure;
use super::error::OptionError;
use super::list::find;
use super::row::{Kind, Opt};

/// Options that are given, and yet to be read.
#[derive(Debug)]
pub struct Given {
    pub(super) left: Vec<One>,
    pub(super) read: Vec<String>,
}

/// An option.
#[derive(Debug)]
pub(super) struct One {
    /// Its long name.
    pub(super) name: String,
    /// At least one.
    pub(super) words: Vec<Word>,
}

/// A word for a value.
#[derive(Debug)]
pub(super) enum Word {
    On,
    Off,
    Text(String),
}

/// Returns an option's long name.
#[must_use]
pub fn long_name(name: &str) -> String {
    match &*name.replace('_', "-") {
        "network" => "net".to_owned(),
        name => name.to_owned(),
    }
}

impl Given {
    /// Takes the options of a request.
    ///
    /// # Errors
    /// If a value is of no kind that an option has.
    pub fn new(options: &Map<String, Value>) -> Result<Self, OptionError> {
        let mut left: Vec<One> = Vec::new();
        let mut places = HashMap::new();
        for (name, value) in options {
            let One { name, words } = one(name, value)?;
            match places
                .get(&name)
                .and_then(|place: &usize| left.get_mut(*place))
            {
                Some(other) => other.words.extend(words),
                None if words.is_empty() => {}
                None => {
                    places.insert(name.clone(), left.len());
                    left.push(One { name, words });
                }
            }
        }
        Ok(Self {
            left,
            read: Vec::new(),
        })
    }

    /// Reads the options that a structure has fields for.
    ///
    /// # Errors
    /// If the value of one has no meaning.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T, OptionError> {
        Ok(T::deserialize(Structure(self))?)
    }

    /// Leaves out the options for which this is not true; those that there are not stay, and are refused at the end.
    #[must_use]
    pub fn only(mut self, keep: impl Fn(&Opt) -> bool) -> Self {
        self.left.retain(|one| find(&one.name).is_none_or(&keep));
        self
    }

    /// Returns the names of the options that were given.
    ///
    /// # Errors
    /// If there is one that no structure has had a field for.
    pub fn end(self) -> Result<Vec<String>, OptionError> {
        match self.left.into_iter().next() {
            None => Ok(self.read),
            Some(One { name, .. }) => Err(OptionError::Unknown(name)),
        }
    }
}

/// Reads an option's name, which may have its value with it if that is true, and its value.
fn one(name: &str, value: &Value) -> Result<One, OptionError> {
    if let (Some((name, text)), Value::Bool(true)) = (name.split_once('='), value) {
        return Ok(One {
            name: long_name(name),
            words: vec![Word::Text(text.to_owned())],
        });
    }
    let name = long_name(name);
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(OptionError::Invalid(format!(
            "`{name}` must be a string, a number, true, or a list or an object of strings and numbers"
        ))),
    };
    let words = match value {
        Value::Null => Vec::new(),
        Value::Bool(true) => vec![Word::On],
        Value::Bool(false) if is_switch(&name) => vec![Word::Off],
        Value::Bool(false) => Vec::new(),
        Value::Array(values) => {
            let texts = values.iter().map(|value| text(value).map(Word::Text));
            texts.collect::<Result<_, _>>()?
        }
        Value::Object(values) => {
            let pairs = values
                .iter()
                .map(|(key, value)| Ok(Word::Text(format!("{key}={}", text(value)?))));
            pairs.collect::<Result<_, OptionError>>()?
        }
        value => vec![Word::Text(text(value)?)],
    };
    Ok(One { name, words })
}

fn is_switch(name: &str) -> bool {
    find(name).is_some_and(|option| matches!(option.kind, Kind::Flag))
}
