//! What an interpreter says, passed on without being kept as a tree: a short number in a list would take 30 times its
//! text. The sandbox's own program has made it, and may be anything.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};

/// Most fields of a reply: a result has one for each format.
const FIELDS: usize = 64;

/// A reply.
#[derive(Debug, Default)]
pub struct Reply {
    /// The number of the request that it is about.
    pub request: Option<u64>,
    pub kind: String,
    /// How many have been run, at the end of a request.
    pub count: Option<u64>,
    /// Whether a result is shown by a call, and is not the last value.
    pub is_display: bool,
    /// All other fields in JSON, each with a comma in front.
    pub fields: Vec<u8>,
}

impl Reply {
    /// Reads a reply.
    pub fn of(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut reply = Self::default();
        let mut from = serde_json::Deserializer::from_slice(text);
        from.deserialize_map(Fields(&mut reply))?;
        from.end()?;
        Ok(reply)
    }

    /// Says that a request has failed.
    pub fn error(request: u64, name: &str, value: &str) -> Self {
        let mut fields = Vec::new();
        for (field, text) in [("name", name), ("value", value), ("traceback", value)] {
            fields.extend_from_slice(format!(",\"{field}\":").as_bytes());
            write(text, &mut fields);
        }
        Self {
            request: Some(request),
            kind: "error".to_owned(),
            fields,
            ..Self::default()
        }
    }
}

struct Fields<'a>(&'a mut Reply);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a reply")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reply = self.0;
        let mut count = 0;
        while let Some(name) = map.next_key::<String>()? {
            count += 1;
            if count > FIELDS {
                return Err(A::Error::custom("too many fields"));
            }
            match &*name {
                "request" => reply.request = map.next_value()?,
                "type" => reply.kind = map.next_value()?,
                "count" => reply.count = map.next_value()?,
                "display" => reply.is_display = map.next_value()?,
                name => {
                    reply.fields.push(b',');
                    write(name, &mut reply.fields);
                    reply.fields.push(b':');
                    map.next_value_seed(Copy(&mut reply.fields))?;
                }
            }
        }
        Ok(())
    }
}

/// Copies a value from one text to another.
struct Copy<'a>(&'a mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Copy<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Copy<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.0.extend_from_slice(b"null");
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        write(&value, self.0);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        write(&value, self.0);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        write(&value, self.0);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        write(&value, self.0);
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        write(value, self.0);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.push(b'[');
        let begin = self.0.len();
        loop {
            let before = self.0.len();
            if before > begin {
                self.0.push(b',');
            }
            if items.next_element_seed(Copy(self.0))?.is_none() {
                self.0.truncate(before);
                break;
            }
        }
        self.0.push(b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.0.push(b'{');
        let mut is_first = true;
        while let Some(name) = map.next_key::<String>()? {
            if !std::mem::take(&mut is_first) {
                self.0.push(b',');
            }
            write(&name, self.0);
            self.0.push(b':');
            map.next_value_seed(Copy(self.0))?;
        }
        self.0.push(b'}');
        Ok(())
    }
}

fn write(value: &(impl Serialize + ?Sized), to: &mut Vec<u8>) {
    // Writing into memory does not fail.
    let _ = serde_json::to_writer(to, value);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_reply_is_passed_on_as_it_is() {
        let data = json!({
            "text": "é\n\"\u{0}", "json": {"a": [1, -2, 2.5, null, true, [], {}, [[0]]], "": "b"},
        });
        let mut reply = data.clone();
        let said = json!({"type": "result", "request": 7, "display": true, "count": 3});
        reply
            .as_object_mut()
            .unwrap()
            .extend(said.as_object().unwrap().clone());
        let reply = Reply::of(reply.to_string().as_bytes()).unwrap();
        assert_eq!((reply.request, &*reply.kind), (Some(7), "result"));
        assert_eq!((reply.count, reply.is_display), (Some(3), true));
        let fields = String::from_utf8(reply.fields).unwrap();
        let fields: Value = serde_json::from_str(&format!("{{{}}}", &fields[1..])).unwrap();
        assert_eq!(fields, data);
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let many: Vec<String> = (0..=FIELDS).map(|name| format!("\"{name}\":0")).collect();
        let many = format!("{{{}}}", many.join(","));
        let deep = format!("{{\"a\":{}", "[".repeat(1000));
        for text in [
            "",
            "[]",
            "0",
            "{",
            "{\"a\":}",
            "{} {}",
            "{\"type\":1}",
            &many,
            &deep,
        ] {
            Reply::of(text.as_bytes()).unwrap_err();
        }
        Reply::of(b"{}").unwrap();
    }
}
