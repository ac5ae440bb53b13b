//! What a tool is, and which there are.

use std::sync::Arc;

use rmcp::model::{self, CallToolResult, ContentBlock, JsonObject, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Server;
use super::call::Call;
use super::{background, command, files, images, running, sandboxes};
use crate::failure::{Failure, cut};

/// A tool: its arguments, and what it does with them. The documentation of the fields is for clients, who
/// get it in a schema.
pub trait Tool: DeserializeOwned + JsonSchema + 'static {
    /// Its name.
    const NAME: &'static str;
    /// What a client needs to know to use it.
    const DESCRIPTION: &'static str;
    /// What it does to what is there.
    const EFFECT: Effect;
    /// Its result.
    type Output: Serialize + JsonSchema + 'static;

    /// Does the work, in a thread that may block.
    fn call(self, server: &Server, call: &Call) -> Result<Self::Output, Failure>;

    /// Returns whether a call with these arguments does nothing but wait.
    fn waits(_arguments: &JsonObject) -> bool {
        false
    }

    /// Returns the result as a model reads it, in pieces; JSON if there are none.
    fn readable(_output: &Self::Output) -> Vec<String> {
        Vec::new()
    }
}

/// What a tool does to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Reads,
    /// It adds something.
    Adds,
    /// It may change or remove something.
    Changes,
}

/// A tool, whatever its type.
#[derive(Debug)]
pub struct AnyTool {
    /// Its name.
    pub name: &'static str,
    /// Describes it to a client.
    pub describe: fn() -> model::Tool,
    /// Returns whether a call with these arguments does nothing but wait.
    pub waits: fn(&JsonObject) -> bool,
    /// Calls it.
    pub call: fn(JsonObject, &Server, &Call) -> Result<CallToolResult, Failure>,
}

/// All tools.
pub const TOOLS: [AnyTool; 13] = [
    any::<sandboxes::CreateSandbox>(),
    any::<command::RunCommand>(),
    any::<background::ReadOutput>(),
    any::<background::KillCommand>(),
    any::<files::ReadFile>(),
    any::<files::WriteFile>(),
    any::<files::ListFiles>(),
    any::<running::ListSandboxes>(),
    any::<sandboxes::ForkSandbox>(),
    any::<running::SnapshotSandbox>(),
    any::<running::StopSandbox>(),
    any::<running::KeepSandbox>(),
    any::<images::ListImages>(),
];

const fn any<T: Tool>() -> AnyTool {
    AnyTool {
        name: T::NAME,
        describe: describe::<T>,
        waits: T::waits,
        call: call::<T>,
    }
}

fn describe<T: Tool>() -> model::Tool {
    let annotations = ToolAnnotations::new()
        .read_only(T::EFFECT == Effect::Reads)
        .destructive(T::EFFECT == Effect::Changes);
    let described = model::Tool::new(T::NAME, T::DESCRIPTION, JsonObject::new())
        .with_input_schema::<T>()
        .with_output_schema::<T::Output>();
    let simple = |schema: &JsonObject| {
        let mut schema = Value::Object(schema.clone());
        simplify(&mut schema);
        Arc::new(schema.as_object().cloned().unwrap_or_default())
    };
    model::Tool::new(T::NAME, T::DESCRIPTION, simple(&described.input_schema))
        .with_raw_output_schema(
            described
                .output_schema
                .as_deref()
                .map_or_else(Arc::default, simple),
        )
        .with_annotations(annotations)
}

/// Takes what is Rust's out of a schema: formats of numbers, of which some clients warn, and the ends of
/// this source's lines in descriptions.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.retain(|name, value| name != "format" || !value.is_string());
            for (name, value) in members {
                match value {
                    Value::String(text) if name == "description" => *text = text.replace('\n', " "),
                    value => simplify(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(simplify),
        _ => {}
    }
}

fn call<T: Tool>(
    arguments: JsonObject,
    server: &Server,
    call: &Call,
) -> Result<CallToolResult, Failure> {
    let tool: T = serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Failure::of(&error).context(&format!("arguments of {}", T::NAME)))?;
    let output = tool.call(server, call)?;
    let readable = T::readable(&output).into_iter();
    let readable: Vec<_> = readable.map(ContentBlock::text).collect();
    let value =
        serde_json::to_value(output).map_err(|error| Failure::of(&error).context("making JSON"))?;
    let mut result = CallToolResult::structured(value);
    if !readable.is_empty() {
        result.content = readable;
    }
    Ok(result)
}

/// Makes the result of a tool that failed: what failed, why, and the next step, as on a terminal.
pub fn failed(failure: &Failure) -> CallToolResult {
    let mut text = cut(failure.message().to_owned());
    if let Some(step) = failure.next_step() {
        text.push('\n');
        text.push_str(step);
    }
    CallToolResult::error(vec![ContentBlock::text(text)])
}
