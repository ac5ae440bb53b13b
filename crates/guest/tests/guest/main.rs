//! The agent, in this process and as process 1 of real machines.

mod files;
mod host;
mod kept;
mod machine;
mod machines;
mod roots;
mod start;
mod streams;
mod terminal;
