//! The JSON Schema of the protocol's messages (`docs/protocol.md`), from the types that read and write them.

use micabox_owner::protocol::{self, VERSION};
use micabox_program::progress::Report;
use micabox_wire::files::{FilePiece, FileReply, FileRequest};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::serve::{Reply, Request};

/// Returns the schema: any message is valid against all of it, and those of one kind against one of `$defs`.
///
/// # Panics
/// If two types have one name there.
pub fn protocol() -> Value {
    let settings = SchemaSettings::draft2020_12();
    let mut read = settings.clone().for_deserialize().into_generator();
    let mut sent = settings.for_serialize().into_generator();
    let kinds = [
        read.subschema_for::<Request>(),
        sent.subschema_for::<Reply<'_>>(),
        sent.subschema_for::<Report<'_>>(),
        read.subschema_for::<protocol::Request>(),
        sent.subschema_for::<protocol::Reply>(),
        read.subschema_for::<FileRequest>(),
        read.subschema_for::<FilePiece>(),
        sent.subschema_for::<FileReply>(),
    ];
    let mut types = Map::new();
    for (name, schema) in definitions(read).chain(definitions(sent)) {
        let other = types.insert(name.clone(), schema.clone());
        assert!(
            other.is_none_or(|other| other == schema),
            "two types have the name {name}"
        );
    }
    types.values_mut().for_each(describe);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of Micabox",
        "description": format!(
            "The messages of version {VERSION} of the protocol in protocol.md. Unknown fields are ignored."
        ),
        "anyOf": kinds,
        "$defs": types,
    })
}

fn definitions(mut generator: SchemaGenerator) -> impl Iterator<Item = (String, Value)> {
    generator.take_definitions(true).into_iter()
}

/// Makes of a type's schema what readers without Rust have use for: text without links, and bounds of numbers.
fn describe(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some((least, most)) = fields.get("format").and_then(bounds) {
                fields.remove("format");
                fields.insert("minimum".to_owned(), least);
                fields.insert("maximum".to_owned(), most);
            }
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => *text = described(text),
                    value => describe(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(describe),
        _ => {}
    }
}

/// What the numbers of a format of Rust's are between.
fn bounds(format: &Value) -> Option<(Value, Value)> {
    match format.as_str()? {
        "uint8" => Some((0.into(), u8::MAX.into())),
        "uint16" => Some((0.into(), u16::MAX.into())),
        "uint32" => Some((0.into(), u32::MAX.into())),
        "uint64" => Some((0.into(), u64::MAX.into())),
        "int32" => Some((i32::MIN.into(), i32::MAX.into())),
        "int64" => Some((i64::MIN.into(), i64::MAX.into())),
        _ => None,
    }
}

/// ``[`Reply::Started`](super::Reply)`` becomes `` `started` ``.
fn described(text: &str) -> String {
    let mut parts = text.split("[`");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |said, part| {
        let (link, rest) = part.split_once("`]").unwrap_or((part, ""));
        let rest = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((_, rest)) => rest,
            None => rest,
        };
        let name = match link.rsplit_once("::") {
            Some((_, name)) => snake(name),
            None => link.to_owned(),
        };
        format!("{said}`{name}`{rest}")
    })
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
