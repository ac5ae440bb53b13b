//! A filesystem in memory, by its calls.

mod contents;
mod lower;
mod names;
mod support;
