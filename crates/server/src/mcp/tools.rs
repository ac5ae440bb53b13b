//! Which tools there are, and how the protocol describes and calls them.

use std::pin::Pin;
use std::sync::Arc;

use rmcp::model::{self, CallToolResult, ContentBlock, JsonObject, ToolAnnotations};
use serde_json::Value;

use super::call::Call;
use super::server::Server;
use super::tool::{Effect, InAThread, Tool, Waiting};
use super::{command, files, images, output, running, sandboxes};
use micabox_program::failure::{Failure, cut};

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
    pub call: Work,
}

/// What a call of a tool is.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Work that blocks.
    InAThread(fn(JsonObject, &Server, &Call) -> Called),
    /// Work that waits.
    Waiting(fn(JsonObject, Arc<Server>, Call) -> Pin<Box<Coming>>),
}

/// What comes of a call.
type Called = Result<CallToolResult, Failure>;
type Coming = dyn Future<Output = Called> + Send;

/// All tools.
pub const TOOLS: [AnyTool; 13] = [
    any::<sandboxes::CreateSandbox>(in_a_thread::<sandboxes::CreateSandbox>()),
    any::<command::RunCommand>(waiting::<command::RunCommand>()),
    any::<output::ReadOutput>(waiting::<output::ReadOutput>()),
    any::<output::KillCommand>(waiting::<output::KillCommand>()),
    any::<files::ReadFile>(waiting::<files::ReadFile>()),
    any::<files::WriteFile>(waiting::<files::WriteFile>()),
    any::<files::ListFiles>(waiting::<files::ListFiles>()),
    any::<running::ListSandboxes>(in_a_thread::<running::ListSandboxes>()),
    any::<sandboxes::ForkSandbox>(in_a_thread::<sandboxes::ForkSandbox>()),
    any::<running::SnapshotSandbox>(in_a_thread::<running::SnapshotSandbox>()),
    any::<running::StopSandbox>(in_a_thread::<running::StopSandbox>()),
    any::<running::KeepSandbox>(in_a_thread::<running::KeepSandbox>()),
    any::<images::ListImages>(in_a_thread::<images::ListImages>()),
];

const fn any<T: Tool>(call: Work) -> AnyTool {
    AnyTool {
        name: T::NAME,
        describe: describe::<T>,
        waits: T::waits,
        call,
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

const fn in_a_thread<T: InAThread>() -> Work {
    Work::InAThread(|arguments, server, call| {
        result::<T>(T::call(parsed(arguments)?, server, call)?)
    })
}

const fn waiting<T: Waiting>() -> Work {
    Work::Waiting(|arguments, server, call| {
        Box::pin(async move {
            let tool: T = parsed(arguments)?;
            result::<T>(tool.call(&server, &call).await?)
        })
    })
}

fn parsed<T: Tool>(arguments: JsonObject) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Failure::of(&error).context(&format!("arguments of {}", T::NAME)))
}

fn result<T: Tool>(output: T::Output) -> Called {
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
