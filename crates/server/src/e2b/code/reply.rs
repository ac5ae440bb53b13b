//! What an interpreter says, passed on as it was written, and without being kept as a tree: a short number in a list would
//! take 30 times its text. The sandbox's own program has made it, and may be anything.

use std::fmt;
use std::io::Write;

use micabox_ground::clock;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::json;
use serde_json::value::RawValue;

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
            // Writing into memory does not fail.
            let _ = serde_json::to_writer(&mut fields, text);
        }
        Self {
            request: Some(request),
            kind: "error".to_owned(),
            fields,
            ..Self::default()
        }
    }

    /// Returns the client's message, as a line; None if there is none.
    pub fn line(self) -> Option<Vec<u8>> {
        let own = match &*self.kind {
            "stdout" | "stderr" => {
                let now = clock::now().as_nanos();
                format!(",\"timestamp\":{now}")
            }
            "result" => format!(",\"is_main_result\":{}", !self.is_display),
            "error" => String::new(),
            "end" => {
                let count = json!({"type": "number_of_executions", "execution_count": self.count});
                return Some(format!("{count}\n").into_bytes());
            }
            _ => return None,
        };
        let mut line = self.fields;
        let begin = format!("{{\"type\":\"{}\"{own}", self.kind);
        line.splice(..0, begin.into_bytes());
        line.extend_from_slice(b"}\n");
        Some(line)
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
                    let value: &RawValue = map.next_value()?;
                    // Its type comes first.
                    let value = match unquoted(value.get()) {
                        Some(text) if name == "text" && reply.kind == "result" => {
                            ["\"", text, "\""]
                        }
                        _ => ["", value.get(), ""],
                    };
                    let value = value.into_iter().flat_map(str::bytes);
                    let _ = write!(reply.fields, ",{}:", json!(name));
                    // Ends of lines are between values only: in strings they are escaped.
                    let is_end = |byte| matches!(byte, b'\n' | b'\r');
                    let on_a_line = value.map(|byte| if is_end(byte) { b' ' } else { byte });
                    reply.fields.extend(on_a_line);
                }
            }
        }
        Ok(())
    }
}

/// What is between the quotes in a text in JSON that begins and ends with them: a string's value, as E2B's server has it.
fn unquoted(text: &str) -> Option<&str> {
    let within = |begin, end| text.strip_prefix(begin)?.strip_suffix(end);
    within("\"'", "'\"").or_else(|| within(r#""\""#, r#"\"""#))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

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
    fn what_a_tree_would_change_stays_as_it_was_written() {
        let text = r#"{"a": 12345678901234567890123, "b": [0.1000000000000000055, 1e400, -0],"c": "\udce9",
            "d": {"twice": 1, "twice": 2}}"#;
        let reply = Reply::of(text.as_bytes()).unwrap();
        let fields = String::from_utf8(reply.fields).unwrap();
        let expected = [
            r#","a":12345678901234567890123,"b":[0.1000000000000000055, 1e400, -0],"c":"\udce9""#,
            r#","d":{"twice": 1, "twice": 2}"#,
        ];
        assert_eq!(fields, expected.concat());
        let lines = b"{\"type\": \"result\", \"a\": [1,\r\n2]}";
        let line = Reply::of(lines).unwrap().line().unwrap();
        let line = String::from_utf8(line).unwrap();
        assert_eq!(
            line,
            "{\"type\":\"result\",\"is_main_result\":true,\"a\":[1,  2]}\n"
        );
    }

    #[test]
    fn the_text_of_a_string_has_no_quotes() {
        for (text, expected) in [
            ("'/tmp'", "/tmp"),
            ("\"it's\"", "it's"),
            ("'a\\\\'", "a\\\\"),
            ("''", ""),
            ("'", "'"),
            ("'a'.b", "'a'.b"),
            ("'a\"", "'a\""),
        ] {
            let said = |kind| format!("{{\"type\": \"{kind}\", \"text\": {}}}", json!(text));
            let shown = |kind| {
                let line = Reply::of(said(kind).as_bytes()).unwrap().line().unwrap();
                serde_json::from_slice::<Value>(&line).unwrap()["text"].clone()
            };
            assert_eq!(
                (shown("result"), shown("stdout")),
                (expected.into(), text.into())
            );
        }
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
