//! What a line from the client is: a message, or something that is answered in its place. Each request gets an answer,
//! also one that can't be decoded, since its client waits for it.

use std::fmt;

use rmcp::model::{
    CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, CustomRequest, ErrorCode,
    InitializeRequestParams, JsonRpcMessage, PaginatedRequestParams, ReadResourceRequestParams,
    RequestId,
};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

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
    Refused(Vec<Value>),
    /// What needs no answer: an empty line, a notification that means nothing here.
    Nothing,
}

/// Decodes a line.
pub fn decode(line: &[u8]) -> Line {
    // RFC 8259, 8.1.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let line = line.trim_ascii();
    match line.first() {
        None => Line::Nothing,
        Some(b'[') => batch(line),
        Some(_) => match serde_json::from_slice::<Head>(line) {
            Ok(head) => one(line, head),
            Err(error) => Line::Refused(vec![no_json(&error)]),
        },
    }
}

/// Returns the answer to a line that is longer than `most` bytes.
pub fn too_long(most: usize) -> Value {
    let why = format!("the line is longer than {most} bytes");
    refusal(None, ErrorCode::PARSE_ERROR, &why)
}

/// Returns the answer to a request.
pub fn refusal(id: Option<&RequestId>, code: ErrorCode, why: &str) -> Value {
    let error = json!({"code": code.0, "message": why});
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

fn no_json(error: &serde_json::Error) -> Value {
    let why = format!("the line is no JSON: {error}");
    refusal(None, ErrorCode::PARSE_ERROR, &why)
}

/// Batches are of a version of the protocol that has come and gone.
fn batch(line: &[u8]) -> Line {
    const WHY: &str = "messages come one a line, not as an array";
    let heads = match serde_json::from_slice::<Vec<Head>>(line) {
        Ok(heads) => heads,
        Err(error) => return Line::Refused(vec![no_json(&error)]),
    };
    let refused = |id: Option<&RequestId>| refusal(id, ErrorCode::INVALID_REQUEST, WHY);
    let ids = heads.iter().filter_map(|head| head.request_id().ok()?);
    let mut answers: Vec<_> = ids.map(|id| refused(Some(&id))).collect();
    if answers.is_empty() {
        answers.push(refused(None));
    }
    Line::Refused(answers)
}

/// Decodes a line with one message.
fn one(line: &[u8], head: Head) -> Line {
    let invalid = |id: Option<&RequestId>, why: &str| {
        Line::Refused(vec![refusal(id, ErrorCode::INVALID_REQUEST, why)])
    };
    if !head.is_object {
        return invalid(None, "a message is an object");
    }
    let id = match head.request_id() {
        Ok(id) => id,
        Err(why) => return invalid(None, why),
    };
    let is_request = match (&head.method, &id) {
        (Some(Value::String(_)), Some(_)) => true,
        (Some(Value::String(_)), None) => false,
        (None, _) if head.is_reply => false,
        (None, _) => return invalid(id.as_ref(), "the message has no `method`"),
        (Some(_), _) => return invalid(id.as_ref(), "the `method` is no string"),
    };
    if is_request && head.version != Some(json!("2.0")) {
        return invalid(id.as_ref(), "`jsonrpc` is not \"2.0\"");
    }
    match serde_json::from_slice::<ClientJsonRpcMessage>(line) {
        Ok(JsonRpcMessage::Request(request)) => {
            let wrong = match &request.request {
                ClientRequest::CustomRequest(request) => wrong_parameters(request),
                _ => None,
            };
            match wrong {
                Some(why) => {
                    let answer = refusal(id.as_ref(), ErrorCode::INVALID_PARAMS, &why);
                    Line::Refused(vec![answer])
                }
                None => Line::Message(Box::new(JsonRpcMessage::Request(request))),
            }
        }
        Ok(message) if !is_request => Line::Message(Box::new(message)),
        Err(error) if is_request => {
            let is_known = matches!(&head.method, Some(Value::String(name)) if METHODS.contains(&name.as_str()));
            // What is left of it are its parameters.
            let code = match (error.is_data(), is_known) {
                (false, _) => ErrorCode::PARSE_ERROR,
                (true, true) => ErrorCode::INVALID_PARAMS,
                (true, false) => ErrorCode::METHOD_NOT_FOUND,
            };
            let why = format!("the request can't be read: {error}");
            Line::Refused(vec![refusal(id.as_ref(), code, &why)])
        }
        Ok(_) => invalid(id.as_ref(), "the message is no request"),
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

/// What says whose message it is, and which. The rest is passed over, so that it need not be sound: strings with
/// halves of characters, or no UTF-8, arrays without end.
#[derive(Debug, Default)]
struct Head {
    is_object: bool,
    version: Option<Value>,
    id: Option<Value>,
    method: Option<Value>,
    /// Whether there is a result or an error.
    is_reply: bool,
}

impl Head {
    /// Returns the number or name of a request; none of a notification.
    fn request_id(&self) -> Result<Option<RequestId>, &'static str> {
        match &self.id {
            None => Ok(None),
            Some(Value::String(name)) => Ok(Some(RequestId::String(name.as_str().into()))),
            Some(Value::Number(number)) if number.is_i64() => {
                Ok(number.as_i64().map(RequestId::Number))
            }
            Some(_) => Err("the `id` is neither a string nor a whole number"),
        }
    }
}

impl<'de> Deserialize<'de> for Head {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Head;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Head, A::Error> {
        let mut head = Head {
            is_object: true,
            ..Head::default()
        };
        while let Some(name) = members.next_key::<String>()? {
            match name.as_str() {
                "jsonrpc" => head.version = Some(members.next_value()?),
                "id" => head.id = Some(members.next_value()?),
                "method" => head.method = Some(members.next_value()?),
                _ => {
                    head.is_reply |= matches!(name.as_str(), "result" | "error");
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(head)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Head, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Head::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Head, E> {
        Ok(Head::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Head, E> {
        Ok(Head::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Head, E> {
        Ok(Head::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Head, E> {
        Ok(Head::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Head, E> {
        Ok(Head::default())
    }

    fn visit_unit<E>(self) -> Result<Head, E> {
        Ok(Head::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes of the answers, with the requests that they are for.
    fn refused(line: &[u8]) -> Vec<(i64, Value)> {
        match decode(line) {
            Line::Refused(answers) => answers
                .iter()
                .map(|answer| {
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
    fn what_has_no_id_that_can_be_read_is_refused_with_none() {
        for (line, code) in [
            (&b"{"[..], -32700),
            (b"{not json", -32700),
            (b"\xff\xfe{}", -32700),
            (
                b"{\"jsonrpc\":\"2.0\",\"id\":\"\\ud800\",\"method\":\"ping\"}",
                -32700,
            ),
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
                b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}",
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
            (
                b"{\"jsonrpc\":\"2.0\",\"id\":18446744073709551615,\"method\":\"ping\"}",
                -32600,
            ),
        ] {
            let shown = String::from_utf8_lossy(line);
            assert_eq!(refused(line), [(code, Value::Null)], "{shown}");
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
