//! The JSON Schema of options in a request, from their rows.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::list::all;
use super::row::{Kind, Opt};
use super::{SandboxOptions, long_name};

impl JsonSchema for SandboxOptions {
    fn schema_name() -> Cow<'static, str> {
        "Options".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        for option in all() {
            properties.insert(option.name.replace('-', "_"), schema(option));
        }
        let aliases = all()
            .map(|option| option.name)
            .filter(|name| name.contains('-'));
        for name in aliases.chain(["network"]) {
            let one = long_name(name).replace('-', "_");
            properties.insert(
                name.to_owned(),
                json!({"$ref": format!("#/$defs/Options/properties/{one}")}),
            );
        }
        json_schema!({
            "type": "object",
            "description": "Long options of `mica run` by name, with `-` or `_`.",
            "properties": properties,
            // Others are refused, but for those that have their value in their name.
            "patternProperties": {"=": {"const": true}},
            "additionalProperties": false,
        })
    }
}

fn schema(option: &Opt) -> Value {
    let word = json!({"type": ["string", "number", "null"]});
    let words = json!({"type": "array", "items": {"type": ["string", "number"]}});
    let named = json!({"type": "object", "additionalProperties": {"type": ["string", "number"]}});
    let mut schema = match option.kind {
        Kind::Text | Kind::Count | Kind::Number => word,
        Kind::OneOf(expected) => {
            json!({"type": ["string", "null"], "examples": expected})
        }
        Kind::Flag => json!({"type": ["boolean", "string", "null"]}),
        Kind::List => json!({"anyOf": [word, words]}),
        Kind::Map => json!({"anyOf": [named, word, words]}),
    };
    if let Some(schema) = schema.as_object_mut().filter(|_| !option.help.is_empty()) {
        schema.insert("description".to_owned(), help(option.help).into());
    }
    schema
}

/// Names in braces are other options', or words of JSON.
fn help(text: &str) -> String {
    text.replace(['{', '}'], "`")
}
