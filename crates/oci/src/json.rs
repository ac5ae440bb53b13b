//! JSON as Go's `encoding/json` reads it.
//!
//! Nearly every builder, registry and engine is a Go program, so what that package accepts is what
//! the documents of this ecosystem look like. Apart from the JSON standard:
//!
//! - `null` and a missing field are the type's zero value, in maps and lists as well;
//! - names of fields match in any case, unknown ones are ignored, and of several the last counts,
//!   where two objects are one with the fields of both;
//! - bytes that aren't UTF-8, and halves of surrogate pairs, become U+FFFD.
//!
//! What a type has no place for is an error there as it is here: a number in a string's place, a
//! fraction in an integer's, bytes after the end.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer, StringDeserializer};
use serde::de::{
    DeserializeOwned, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Number;

/// Why a document can't be read.
pub type Error = serde_json::Error;

/// Reads a document of type `T`.
///
/// # Errors
///
/// [`Error`]: it is not JSON, or of another structure.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match bytes.trim_ascii_start() {
        [] => return Err(Error::custom("it is empty")),
        [0xef, 0xbb, 0xbf, ..] => {
            return Err(Error::custom(
                "it begins with a byte order mark, which JSON does not have",
            ));
        }
        [b'<', ..] => {
            return Err(Error::custom(
                "it is HTML or XML, as proxies and login pages send it, and not JSON",
            ));
        }
        _ => {}
    }
    let text = String::from_utf8_lossy(bytes);
    let json: Json = serde_json::from_str(&without_lone_surrogates(&text))?;
    T::deserialize(json)
}

/// A document, or a part of one, with all fields in the order of the text.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Json {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object; a name may occur several times.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Returns the value of the field `name`, as a program with such a field reads it; `null` if
    /// there is none.
    #[must_use]
    pub fn field(&self, name: &str) -> Self {
        let mut found = Self::Null;
        if let Self::Object(fields) = self {
            for (_, value) in fields.iter().filter(|(key, _)| is_same_name(key, name)) {
                found.take(value.clone());
            }
        }
        found
    }

    /// Sets the field `name`, in place of all that a program with such a field would take for it.
    /// What isn't an object becomes one.
    pub fn set_field(&mut self, name: &str, value: Self) {
        self.remove_field(name);
        match self {
            Self::Object(fields) => fields.push((name.to_owned(), value)),
            other => *other = Self::Object(vec![(name.to_owned(), value)]),
        }
    }

    /// Removes the field `name`, in every spelling.
    pub fn remove_field(&mut self, name: &str) {
        if let Self::Object(fields) = self {
            fields.retain(|(key, _)| !is_same_name(key, name));
        }
    }

    /// Returns a value as a document.
    ///
    /// # Errors
    ///
    /// The value's own.
    pub fn of(value: &impl Serialize) -> Result<Self, Error> {
        Self::deserialize(serde_json::to_value(value)?)
    }

    /// Takes a later value of the same field.
    fn take(&mut self, later: Self) {
        match (self, later) {
            (Self::Object(fields), Self::Object(more)) => fields.extend(more),
            (value, later) => *value = later,
        }
    }

    fn is_no(&self, what: &str) -> Error {
        let kind = match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        };
        Error::custom(format!("{kind} in the place of {what}"))
    }
}

/// Returns whether Go takes `name` for a field that is called `field`.
fn is_same_name(name: &str, field: &str) -> bool {
    // Two letters beyond ASCII are lower or upper case of one within.
    let fold = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).eq(field.chars().map(fold))
}

/// Replaces escapes for one half of a surrogate pair by that of U+FFFD.
fn without_lone_surrogates(text: &str) -> Cow<'_, str> {
    if !text.contains("\\u") {
        return Cow::Borrowed(text);
    }
    let unit = |text: &str| u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let mut fixed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, _)) = rest.split_once('\\') {
        let (before, escape) = rest.split_at(before.len());
        fixed.push_str(before);
        let second = escape.get(6..).and_then(unit);
        let length = match (unit(escape), second) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                fixed.push_str("\\ufffd");
                rest = escape.get(6..).unwrap_or_default();
                continue;
            }
            (Some(_), _) => 6,
            // The backslash and what it escapes, which may be another one.
            (None, _) => 1 + escape.chars().nth(1).map_or(0, char::len_utf8),
        };
        let (escape, after) = escape.split_at(length);
        fixed.push_str(escape);
        rest = after;
    }
    fixed.push_str(rest);
    Cow::Owned(fixed)
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Json::Bool(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(Json::Number(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Json::Number(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
            }

            fn visit_str<E>(self, value: &str) -> Result<Json, E> {
                Ok(Json::Text(value.to_owned()))
            }

            fn visit_string<E>(self, value: String) -> Result<Json, E> {
                Ok(Json::Text(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Json::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Json::Object(fields))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(value) => value.serialize(serializer),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(items) => serializer.collect_seq(items),
            Self::Object(fields) => {
                serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
            }
        }
    }
}

impl IntoDeserializer<'_, Error> for Json {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Methods that take `null` for a zero, and all else as it is.
macro_rules! zero_if_null {
    ($($method:ident $visit:ident $zero:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match self {
                Self::Null => visitor.$visit($zero),
                value => value.deserialize_any(visitor),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Json {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Number(value) => value.deserialize_any(visitor),
            Self::Text(value) => visitor.visit_string(value),
            Self::List(items) => visitor.visit_seq(SeqDeserializer::new(items.into_iter())),
            Self::Object(fields) => visitor.visit_map(MapDeserializer::new(fields.into_iter())),
        }
    }

    zero_if_null! {
        deserialize_bool visit_bool false;
        deserialize_i8 visit_i8 0;
        deserialize_i16 visit_i16 0;
        deserialize_i32 visit_i32 0;
        deserialize_i64 visit_i64 0;
        deserialize_u8 visit_u8 0;
        deserialize_u16 visit_u16 0;
        deserialize_u32 visit_u32 0;
        deserialize_u64 visit_u64 0;
        deserialize_f32 visit_f32 0.0;
        deserialize_f64 visit_f64 0.0;
        deserialize_str visit_str "";
        deserialize_string visit_str "";
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => visitor.visit_none(),
            value => visitor.visit_some(value),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => Self::List(Vec::new()).deserialize_any(visitor),
            list @ Self::List(_) => list.deserialize_any(visitor),
            other => Err(other.is_no("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => Self::Object(Vec::new()).deserialize_any(visitor),
            object @ Self::Object(_) => object.deserialize_any(visitor),
            other => Err(other.is_no("an object")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let given = match self {
            Self::Null => Vec::new(),
            Self::Object(given) => given,
            other => return Err(other.is_no("an object")),
        };
        let mut known: Vec<_> = fields.iter().map(|name| (*name, Self::Null)).collect();
        for (name, value) in given {
            if let Some((_, known)) = known
                .iter_mut()
                .find(|(known, _)| is_same_name(&name, known))
            {
                known.take(value);
            }
        }
        visitor.visit_map(MapDeserializer::new(known.into_iter()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::Text(value) => {
                StringDeserializer::new(value).deserialize_enum(name, variants, visitor)
            }
            other => Err(other.is_no("a string")),
        }
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Image {
        media_type: String,
        size: u64,
        env: Vec<String>,
        labels: BTreeMap<String, String>,
        variant: Option<String>,
        inner: Inner,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    struct Inner {
        a: String,
        b: bool,
    }

    fn read(text: &str) -> Image {
        from_slice(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn null_and_missing_fields_are_zero_values_everywhere() {
        for text in [
            "{}",
            "null",
            r#"{"mediaType":null,"size":null,"env":null,"labels":null,"variant":null,"inner":null}"#,
            r#"{"inner":{"a":null,"b":null},"unknown":[1,{"x":null}]}"#,
        ] {
            assert_eq!(read(text), Image::default(), "{text}");
        }
        let image = read(r#"{"env":["A=1",null],"labels":{"a":null}}"#);
        assert_eq!(image.env, ["A=1", ""]);
        assert_eq!(image.labels["a"], "");
    }

    #[test]
    fn names_of_fields_match_in_any_case_and_the_last_one_counts() {
        let text = "{\"MEDIATYPE\":\"x\",\"\u{17f}ize\":3,\"Size\":4,\"INNER\":{\"A\":\"1\"},\
            \"inner\":{\"b\":true},\"labels\":{\"A\":\"1\",\"a\":\"2\",\"a\":\"3\"}}";
        let image = read(text);
        assert_eq!((image.media_type.as_str(), image.size), ("x", 4));
        let inner = Inner {
            a: "1".into(),
            b: true,
        };
        assert_eq!(image.inner, inner);
        // Names in a map are data.
        assert_eq!((&*image.labels["A"], &*image.labels["a"]), ("1", "3"));
    }

    #[test]
    fn text_that_is_no_unicode_is_replaced() {
        let image: Image = from_slice(b"{\"mediaType\":\"a\xffb\"}").unwrap();
        assert_eq!(image.media_type, "a\u{fffd}b");
        let text = r#"{"mediaType":"\ud800x\udc00\ud83d\ude00\\ud800\u0041"}"#;
        assert_eq!(read(text).media_type, "\u{fffd}x\u{fffd}\u{1f600}\\ud800A");
    }

    #[test]
    fn what_no_go_program_reads_is_refused() {
        for (text, part) in [
            ("", "empty"),
            (" \n", "empty"),
            ("<!DOCTYPE html><html>", "HTML"),
            ("\u{feff}{}", "byte order mark"),
            ("[]", "a list in the place of an object"),
            (r#"["x",1]"#, "a list in the place of an object"),
            (r#"{"size":"1"}"#, "string"),
            (r#"{"size":1.5}"#, "floating point"),
            (r#"{"size":-1}"#, "-1"),
            (r#"{"mediaType":1}"#, "integer"),
            (r#"{"env":"A=1"}"#, "a string in the place of a list"),
            (r#"{"env":{}}"#, "an object in the place of a list"),
            (r#"{"labels":[]}"#, "a list in the place of an object"),
            (r#"{"inner":"x"}"#, "a string in the place of an object"),
            ("{} {}", "trailing"),
            (r#"{"size":1,}"#, "trailing comma"),
            ("{", "EOF"),
        ] {
            let error = from_slice::<Image>(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        assert!(from_slice::<Image>("[".repeat(100_000).as_bytes()).is_err());
        assert!(from_slice::<Json>("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn fields_of_a_tree_are_read_and_set_like_those_of_a_struct() {
        let mut json: Json =
            from_slice(br#"{"RootFS":{"a":1},"x":[1.5],"rootfs":{"b":null}}"#).unwrap();
        let rootfs = serde_json::to_string(&json.field("rootfs")).unwrap();
        assert_eq!(rootfs, r#"{"a":1,"b":null}"#);
        json.set_field("rootfs", Json::Text("y".into()));
        let text = serde_json::to_string(&json).unwrap();
        assert_eq!(text, r#"{"x":[1.5],"rootfs":"y"}"#);
        assert_eq!(Json::Null.field("x"), Json::Null);
    }
}
