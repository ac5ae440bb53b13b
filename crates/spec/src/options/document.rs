//! Reads options into structures: each error names the option it is about.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::error::OptionError;
use super::given::{Given, One, Word};
use crate::words::boolean;

/// What is wrong with an option.
#[derive(Debug)]
pub(super) enum Wrong {
    /// The reason; which option it is, is not known yet.
    Value(String),
    /// All of it.
    Whole(OptionError),
}

impl Wrong {
    fn about(message: String) -> Self {
        Self::Whole(OptionError::Invalid(message))
    }

    /// Adds the name of the option, and which of its words it is.
    fn of(self, name: &str, words: &[Word]) -> Self {
        let Self::Value(why) = self else {
            return self;
        };
        match words {
            [Word::Text(value)] => Self::Whole(OptionError::Value {
                name: name.to_owned(),
                value: value.clone(),
                why,
            }),
            _ => Self::about(format!("option `{name}`: {why}")),
        }
    }
}

impl From<Wrong> for OptionError {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Value(why) => Self::Invalid(why),
            Wrong::Whole(error) => error,
        }
    }
}

impl serde::de::Error for Wrong {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::Value(why.to_string())
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format!("expected one of {}", expected.join(", ")))
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(why) => f.write_str(why),
            Self::Whole(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Wrong {}

/// Options, of which a structure takes those that it has fields for.
pub(super) struct Structure<'a>(pub(super) &'a mut Given);

impl<'de> Deserializer<'de> for Structure<'_> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Wrong> {
        Err(serde::de::Error::custom("options are a structure's"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let left = std::mem::take(&mut self.0.left).into_iter();
        let (its, left) = left.partition(|given| fields.contains(&&*given.name));
        self.0.left = left;
        let its: Vec<One> = its;
        self.0
            .read
            .extend(its.iter().map(|given| given.name.clone()));
        visitor.visit_map(Fields {
            left: its.iter(),
            value: None,
        })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The options of a structure.
struct Fields<'a> {
    left: std::slice::Iter<'a, One>,
    /// The one whose name was read.
    value: Option<&'a One>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Wrong> {
        self.value = self.left.next();
        let key = self.value.map(|given| {
            let name: StrDeserializer<'_, Wrong> = given.name.as_str().into_deserializer();
            seed.deserialize(name)
        });
        key.transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let (name, words) = match self.value {
            Some(given) => (&*given.name, &*given.words),
            None => ("", &[][..]),
        };
        let value = seed.deserialize(Words { name, words });
        value.map_err(|wrong| wrong.of(name, words))
    }
}

/// An option's words.
#[derive(Clone, Copy)]
struct Words<'a> {
    name: &'a str,
    words: &'a [Word],
}

impl<'a> Words<'a> {
    fn one(self) -> Result<&'a Word, Wrong> {
        match self.words {
            [word] => Ok(word),
            [] => Err(self.missing()),
            _ => Err(Wrong::about(format!(
                "the argument `{}` cannot be used multiple times",
                self.name
            ))),
        }
    }

    fn text(self) -> Result<&'a str, Wrong> {
        match self.one()? {
            Word::Text(text) => Ok(text),
            Word::On | Word::Off => Err(self.missing()),
        }
    }

    fn missing(self) -> Wrong {
        Wrong::about(format!("option `{}` needs a value", self.name))
    }
}

impl<'de> Deserializer<'de> for Words<'_> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_bool(match self.one()? {
            Word::On => true,
            Word::Off => false,
            Word::Text(text) => {
                boolean(text).ok_or_else(|| serde::de::Error::custom("expected true or false"))?
            }
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_seq(Elements(self))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let text = self.text()?;
        let word: StrDeserializer<'_, Wrong> = text.into_deserializer();
        visitor.visit_enum(word).map_err(|wrong| match text {
            "" => self.missing(),
            _ => wrong,
        })
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// An option's words, one at a time.
struct Elements<'a>(Words<'a>);

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Wrong> {
        let Words { name, words } = self.0;
        let Some((_, left)) = words.split_first() else {
            return Ok(None);
        };
        let (word, _) = words.split_at(1);
        self.0.words = left;
        let element = seed.deserialize(Words { name, words: word });
        element.map(Some).map_err(|wrong| wrong.of(name, word))
    }
}
