//! What a tool is.

use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call::Call;
use super::server::Server;
use micabox_program::failure::Failure;

/// A tool: its arguments, and what it does with them. The documentation of the fields is for clients, who
/// get it in a schema.
pub trait Tool: DeserializeOwned + JsonSchema + Send + 'static {
    /// Its name.
    const NAME: &'static str;
    /// What a client needs to know to use it.
    const DESCRIPTION: &'static str;
    /// What it does to what is there.
    const EFFECT: Effect;
    /// Its result.
    type Output: Serialize + JsonSchema + Send + 'static;

    /// Returns whether a call with these arguments does nothing but wait.
    fn waits(_arguments: &JsonObject) -> bool {
        false
    }

    /// Returns the result as a model reads it, in pieces; JSON if there are none.
    fn readable(_output: &Self::Output) -> Vec<String> {
        Vec::new()
    }
}

/// A tool whose work blocks.
pub trait InAThread: Tool {
    /// Does the work, in a thread of its own.
    fn call(self, server: &Server, call: &Call) -> Result<Self::Output, Failure>;
}

/// A tool whose work waits, for which it needs no thread.
pub trait Waiting: Tool {
    /// Does the work.
    fn call(
        self,
        server: &Server,
        call: &Call,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;
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
