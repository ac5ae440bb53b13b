//! What a line from the client is: a message, or something that is answered in its place. Each request gets an answer,
//! also one that can't be decoded, since its client waits for it.

use std::fmt;

use rmcp::model::{
    CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, CustomRequest, ErrorCode,
    InitializeRequestParams, JsonRpcMessage, PaginatedRequestParams, ReadResourceRequestParams,
};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::json;
use serde_json::value::RawValue;

use super::once::Once;

/// The methods whose parameters are checked here.
const METHODS: [&str; 7] = [
    "initialize",
    "ping",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "tools/call",
    "tools/list",
];

/// What a line is.
#[derive(Debug)]
pub enum Line {
    /// A message that can be handled.
    Message(Box<ClientJsonRpcMessage>),
    /// Something else, with what is answered: a message for each request in it.
    Refused(Vec<String>),
    /// What needs no answer: an empty line, a notification that means nothing here.
    Nothing,
}

/// Decodes a line.
pub fn decode(line: &[u8]) -> Line {
    // RFC 8259, 8.1.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let line = line.trim_ascii();
    // What is no UTF-8 may be anywhere but where it is looked for.
    let text = String::from_utf8_lossy(line);
    match line.first() {
        None => Line::Nothing,
        Some(b'[') => batch(&text),
        Some(_) => match serde_json::from_str::<Head<'_>>(&text) {
            Ok(head) => one(line, &head),
            Err(error) => Line::Refused(vec![no_json(id_in(&text), &error)]),
        },
    }
}

/// Finds the number or name of a request in what is no JSON, as with Python's `NaN`: its client waits for it.
fn id_in(text: &str) -> Option<&str> {
    let (mut depth, mut at) = (0, 0);
    let mut is_id = false;
    while let Some(byte) = text.as_bytes().get(at) {
        let rest = text.get(at..).unwrap_or_default();
        let length = match byte {
            b'"' => end_of_string(rest)?,
            b'-' | b'0'..=b'9' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
                rest.find(|c| !is_part(c)).unwrap_or(rest.len())
            }
            _ => 1,
        };
        let token = rest.get(..length).unwrap_or_default();
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        if is_id && !matches!(byte, b':' | b' ' | b'\t') {
            return Some(token).filter(|id| matches!(Id::of(id), Id::Known(_)));
        }
        is_id |=
            depth == 1 && token == "\"id\"" && rest.get(length..)?.trim_start().starts_with(':');
        at += length;
    }
    None
}

/// Returns where a string in JSON ends that the text begins with.
fn end_of_string(text: &str) -> Option<usize> {
    let mut bytes = text.bytes().enumerate().skip(1);
    loop {
        match bytes.next()? {
            (at, b'"') => return Some(at + 1),
            (_, b'\\') => drop(bytes.next()),
            _ => {}
        }
    }
}

/// Returns the answer to a line that is longer than `most` bytes.
pub fn too_long(most: usize) -> String {
    let why = format!("the line is longer than {most} bytes");
    refusal(None, ErrorCode::PARSE_ERROR, &why)
}

/// Returns the answer to a line that begins so, and for whose rest there is no room.
pub fn no_room(begin: &[u8]) -> String {
    let text = String::from_utf8_lossy(begin);
    let why = "requests that are under way take all the room for long ones: wait for their results";
    refusal(id_in(&text), ErrorCode::INVALID_REQUEST, why)
}

/// Returns the answer to a request, whose ID is in JSON.
pub fn refusal(id: Option<&str>, code: ErrorCode, why: &str) -> String {
    let (id, error) = (
        id.unwrap_or("null"),
        json!({"code": code.0, "message": why}),
    );
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

fn no_json(id: Option<&str>, error: &serde_json::Error) -> String {
    let why = format!("the line is no JSON: {error}");
    refusal(id, ErrorCode::PARSE_ERROR, &why)
}

/// Batches are of a version of the protocol that has come and gone.
fn batch(text: &str) -> Line {
    const WHY: &str = "messages come one a line, not as an array";
    let heads = match serde_json::from_str::<Vec<Head<'_>>>(text) {
        Ok(heads) => heads,
        Err(error) => return Line::Refused(vec![no_json(None, &error)]),
    };
    let refused = |id: Option<&str>| refusal(id, ErrorCode::INVALID_REQUEST, WHY);
    let ids = heads.iter().filter_map(|head| head.id().shown());
    let mut answers: Vec<_> = ids.map(|id| refused(Some(id))).collect();
    if answers.is_empty() {
        answers.push(refused(None));
    }
    Line::Refused(answers)
}

/// Decodes a line with one message.
fn one(line: &[u8], head: &Head<'_>) -> Line {
    let id = head.id();
    let refused = |code: ErrorCode, why: &str| Line::Refused(vec![refusal(id.shown(), code, why)]);
    let invalid = |why: &str| refused(ErrorCode::INVALID_REQUEST, why);
    if !head.is_object {
        return invalid("a message is an object");
    }
    if let Id::Wrong(_, why) = id {
        return invalid(why);
    }
    let method = head.method.map(text);
    let is_request = match (&method, id) {
        (Some(Some(_)), Id::Known(_)) => true,
        (Some(Some(_)), _) => false,
        (None, _) if head.is_reply => false,
        (None, _) => return invalid("the message has no `method`"),
        (Some(None), _) => return invalid("the `method` is no text"),
    };
    if is_request && head.version.and_then(text).as_deref() != Some("2.0") {
        return invalid("`jsonrpc` is not \"2.0\"");
    }
    match serde_json::from_slice::<ClientJsonRpcMessage>(line) {
        Ok(JsonRpcMessage::Request(request)) => {
            let wrong = match &request.request {
                ClientRequest::CustomRequest(request) => wrong_parameters(request),
                _ => None,
            };
            let wrong = wrong.or_else(|| {
                let twice = serde_json::from_slice::<Once>(line).err();
                twice.map(|error| error.to_string())
            });
            match wrong {
                Some(why) => refused(ErrorCode::INVALID_PARAMS, &why),
                None => Line::Message(Box::new(JsonRpcMessage::Request(request))),
            }
        }
        Ok(message) if !is_request => Line::Message(Box::new(message)),
        Err(error) if is_request => {
            let method = method.flatten().unwrap_or_default();
            // What is left of it are its parameters.
            let code = match (error.is_data(), METHODS.contains(&&*method)) {
                (false, _) => ErrorCode::PARSE_ERROR,
                (true, true) => ErrorCode::INVALID_PARAMS,
                (true, false) => ErrorCode::METHOD_NOT_FOUND,
            };
            refused(code, &format!("the request can't be read: {error}"))
        }
        Ok(_) => invalid("the message is no request"),
        Err(_) => Line::Nothing,
    }
}

/// Returns why a request is not the one of its method. rmcp takes it for one of a method that it doesn't know.
fn wrong_parameters(request: &CustomRequest) -> Option<String> {
    fn why<T: serde::de::DeserializeOwned>(request: &CustomRequest) -> String {
        match request.params_as::<T>() {
            Ok(None) => "it has none".to_owned(),
            Ok(Some(_)) => "`_meta` is no object".to_owned(),
            Err(error) => error.to_string(),
        }
    }
    let why = match request.method.as_str() {
        "initialize" => why::<InitializeRequestParams>(request),
        "tools/call" => why::<CallToolRequestParams>(request),
        "resources/read" => why::<ReadResourceRequestParams>(request),
        method if METHODS.contains(&method) => why::<PaginatedRequestParams>(request),
        _ => return None,
    };
    Some(format!("the parameters of {}: {why}", request.method))
}

/// What says whose message it is, and which, in JSON. The rest is passed over, so that it need not be sound: strings with
/// halves of characters, arrays without end.
#[derive(Debug, Default)]
struct Head<'a> {
    is_object: bool,
    version: Option<&'a str>,
    id: Option<&'a str>,
    method: Option<&'a str>,
    /// Whether there is a result or an error.
    is_reply: bool,
}

/// The number or name of a request, in JSON.
#[derive(Clone, Copy, Debug)]
enum Id<'a> {
    /// It is no request.
    None,
    Known(&'a str),
    /// One that no request may have, and why. Its client may look for it in the answer, unless it is no number or text.
    Wrong(Option<&'a str>, &'static str),
}

impl<'a> Id<'a> {
    fn of(json: &'a str) -> Self {
        match json.bytes().next() {
            Some(b'"') if text(json).is_some() => Self::Known(json),
            Some(b'"') => Self::Wrong(Some(json), "the `id` is no text"),
            Some(b'-' | b'0'..=b'9') if serde_json::from_str::<i64>(json).is_ok() => {
                Self::Known(json)
            }
            Some(b'-' | b'0'..=b'9') => Self::Wrong(Some(json), "the `id` is no whole number"),
            _ => Self::Wrong(None, "the `id` is neither a string nor a whole number"),
        }
    }

    /// Returns what an answer has of it.
    fn shown(self) -> Option<&'a str> {
        match self {
            Self::None => None,
            Self::Known(id) => Some(id),
            Self::Wrong(id, _) => id,
        }
    }
}

impl<'a> Head<'a> {
    fn id(&self) -> Id<'a> {
        self.id.map_or(Id::None, Id::of)
    }
}

/// Returns the text that a string in JSON stands for; None if it is something else, or has half of a character.
fn text(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

impl<'de> Deserialize<'de> for Head<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Fields)
    }
}

/// The name of a field, which may have halves of characters too.
struct Name(Vec<u8>);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_bytes<E>(self, name: &[u8]) -> Result<Name, E> {
                Ok(Name(name.to_owned()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Head<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Head<'de>, A::Error> {
        let mut head = Head {
            is_object: true,
            ..Head::default()
        };
        while let Some(Name(name)) = members.next_key()? {
            let member = match &*name {
                b"jsonrpc" => &mut head.version,
                b"id" => &mut head.id,
                b"method" => &mut head.method,
                name => {
                    head.is_reply |= matches!(name, b"result" | b"error");
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *member = Some(members.next_value::<&RawValue>()?.get());
        }
        Ok(head)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Head<'de>, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Head::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Head<'de>, E> {
        Ok(Head::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Head<'de>, E> {
        Ok(Head::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Head<'de>, E> {
        Ok(Head::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Head<'de>, E> {
        Ok(Head::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Head<'de>, E> {
        Ok(Head::default())
    }

    fn visit_unit<E>(self) -> Result<Head<'de>, E> {
        Ok(Head::default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The codes of the answers, with the requests that they are for.
    fn refused(line: &[u8]) -> Vec<(i64, Value)> {
        match decode(line) {
            Line::Refused(answers) => answers
                .iter()
                .map(|answer| {
                    let answer: Value = serde_json::from_str(answer).unwrap();
                    let code = answer["error"]["code"].as_i64().unwrap();
                    (code, answer["id"].clone())
                })
                .collect(),
            other => panic!("{}: {other:?}", String::from_utf8_lossy(line)),
        }
    }

    #[test]
    fn a_request_that_cant_be_decoded_is_refused_with_its_id() {
        let call = |params: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#)
        };
        for (line, code) in [
            (
                call(r#"{"name":"a","arguments":{"path":"\udce9"}}"#),
                -32700,
            ),
            (
                call(r#"{"name":"a","arguments":{"path":"\udce9\u0041"}}"#),
                -32700,
            ),
            (call(r#"{"name":"a","arguments":{"\ud800":1}}"#), -32700),
            (call(r#"{"name":"a","arguments":{"n":1e999}}"#), -32700),
            (
                call(&format!(
                    "{{\"name\":{}{}}}",
                    "[".repeat(9000),
                    "]".repeat(9000)
                )),
                -32700,
            ),
            (call(r#"{"name":"a","arguments":"x"}"#), -32602),
            (call(r#"{"name":"a","arguments":[1]}"#), -32602),
            (call(r#"{"name":"a","_meta":1}"#), -32602),
            (call(r#"{"arguments":{}}"#), -32602),
            (call("[]"), -32602),
            (call("\"x\""), -32602),
            (call("null"), -32602),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#.to_owned(),
                -32602,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{}}"#.to_owned(),
                -32602,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"resources/read"}"#.to_owned(),
                -32602,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":"x"}"#.to_owned(),
                -32602,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"no/such","params":[1]}"#.to_owned(),
                -32601,
            ),
            (
                r#"{"\ud800":1,"jsonrpc":"2.0","id":7,"method":"ping"}"#.to_owned(),
                -32700,
            ),
            (
                r#"{"jsonrpc":"\ud800","id":7,"method":"ping"}"#.to_owned(),
                -32600,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"\ud800"}"#.to_owned(),
                -32600,
            ),
            (
                r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#.to_owned(),
                -32600,
            ),
            (r#"{"id":7,"method":"ping"}"#.to_owned(), -32600),
            (r#"{"jsonrpc":"2.0","id":7}"#.to_owned(), -32600),
            (r#"{"jsonrpc":"2.0","id":7,"method":3}"#.to_owned(), -32600),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":null}"#.to_owned(),
                -32600,
            ),
        ] {
            assert_eq!(refused(line.as_bytes()), [(code, json!(7))], "{line}");
        }
        let bytes = b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"\xff\",\"params\":{\"\xff\":1}}";
        assert_eq!(refused(bytes), [(-32700, json!(7))]);
        let bytes =
            b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\",\"params\":{\"x\":\"\xff\"}}";
        match decode(bytes) {
            // Nothing of it is needed.
            Line::Message(_) => {}
            Line::Refused(_) => assert_eq!(refused(bytes), [(-32700, json!("a"))]),
            Line::Nothing => panic!("it is not answered"),
        }
    }

    #[test]
    fn what_is_there_twice_is_refused_by_its_name() {
        for arguments in [
            r#"{"sandbox":"a","sandbox":"b"}"#,
            r#"{"env":{"sandbox":"b","\u0073andbox":"b"}}"#,
            r#"{"options":[{"a":{"sandbox":1,"sandbox":1}}]}"#,
        ] {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"a","arguments":{arguments}}}}}"#
            );
            match decode(line.as_bytes()) {
                Line::Refused(answers) => assert!(answers[0].contains("`sandbox` is there twice")),
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_refused_with_its_id() {
        let begin = br#"{"jsonrpc":"2.0","id":7,"params":{"a":"xxx"#;
        let answer: Value = serde_json::from_str(&no_room(begin)).unwrap();
        assert_eq!(answer["id"], 7);
    }

    #[test]
    fn what_is_no_json_is_refused_with_the_id_that_is_in_it() {
        let arguments = r#""params":{"name":"a","arguments":{"id":1,"b":"\"id\":2,"}}"#;
        for (line, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"params":{"n":NaN}}"#, json!(7)),
            (r#"{"params":{"n":-Infinity},"id" : "a\"b"}"#, json!("a\"b")),
            (
                &format!(r#"{{"x":"id",{arguments},"n":[01],"id":8}}"#),
                json!(8),
            ),
            (&format!(r#"{{{arguments},"n":01}}"#), Value::Null),
            (r#"{"jsonrpc":"2.0","id":9,"method":"ping""#, json!(9)),
            (r#"{"id":1.5,"method":"ping""#, Value::Null),
            (r#"{"id":{"id":1},"n":01}"#, Value::Null),
            (r#"{"id"#, Value::Null),
            (r#"{"id":"#, Value::Null),
            (r#"{"id":"\"#, Value::Null),
        ] {
            assert_eq!(refused(line.as_bytes()), [(-32700, id)], "{line}");
        }
    }

    #[test]
    fn what_has_no_id_that_can_be_read_is_refused_with_none() {
        for (line, code) in [
            (&b"{"[..], -32700),
            (b"{not json", -32700),
            (b"\xff\xfe{}", -32700),
            (b"{} {}", -32700),
            (b"[1,", -32700),
            (b"1", -32600),
            (b"\"x\"", -32600),
            (b"null", -32600),
            (b"{}", -32600),
            (b"[]", -32600),
            (b"[1,\"x\",[2]]", -32600),
            (
                b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
                -32600,
            ),
            (
                b"{\"jsonrpc\":\"2.0\",\"id\":true,\"method\":\"ping\"}",
                -32600,
            ),
            (
                b"{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"ping\"}",
                -32600,
            ),
        ] {
            let shown = String::from_utf8_lossy(line);
            assert_eq!(refused(line), [(code, Value::Null)], "{shown}");
        }
    }

    #[test]
    fn an_id_that_no_request_may_have_is_in_the_answer_as_it_was_sent() {
        for id in [
            "1.5",
            "1e2",
            "18446744073709551615",
            "-0",
            "1e999",
            r#""\ud800""#,
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            let Line::Refused(answers) = decode(line.as_bytes()) else {
                panic!("{line}");
            };
            let begin = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32600,"#);
            assert!(
                answers.len() == 1 && answers[0].starts_with(&begin),
                "{answers:?}"
            );
        }
    }

    #[test]
    fn each_request_of_a_batch_is_refused() {
        let ping = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let line = format!(r#"[{}, 3, {}, {{"method":"x"}}]"#, ping("1"), ping("\"b\""));
        let each = [(-32600, json!(1)), (-32600, json!("b"))];
        assert_eq!(refused(line.as_bytes()), each);
    }

    #[test]
    fn messages_and_what_needs_no_answer_are_passed_on_and_over() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"no/such","params":{"a":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        ] {
            assert!(
                matches!(decode(line.as_bytes()), Line::Message(_)),
                "{line}"
            );
        }
        for line in ["", " \r", r#"{"method":"notifications/x"}"#] {
            assert!(matches!(decode(line.as_bytes()), Line::Nothing), "{line}");
        }
    }
}
