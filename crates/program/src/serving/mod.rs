//! The flags of the commands that `mica-server` serves: `mica` parses them too, for its help and their errors, before it
//! becomes that program.

mod e2b;
mod mcp;
mod registries;
mod replica;

pub use e2b::{E2bArgs, ServeArgs};
pub use mcp::McpArgs;
pub use registries::Registries;
pub use replica::ReplicaArgs;
