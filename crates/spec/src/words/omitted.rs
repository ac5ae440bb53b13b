//! Words by which Docker's command lines and scripts say that a setting is not given: 0 and ''.

use std::fmt::Display;
use std::str::FromStr;

use super::{WordError, is_zero};

/// A word, or 0 with any unit, for which there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrDefault<T>(pub Option<T>);

/// A word, or '', for which there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrNone<T>(pub Option<T>);

impl<T: FromStr<Err: Display>> FromStr for OrDefault<T> {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match text {
            text if is_zero(text) => Ok(Self(None)),
            text => word(text).map(|word| Self(Some(word))),
        }
    }
}

impl<T: FromStr<Err: Display>> FromStr for OrNone<T> {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match text {
            "" => Ok(Self(None)),
            text => word(text).map(|word| Self(Some(word))),
        }
    }
}

fn word<T: FromStr<Err: Display>>(text: &str) -> Result<T, WordError> {
    text.parse()
        .map_err(|error: T::Err| error.to_string().into())
}
