//! The fuzz target's work on mutated headers.

#[path = "../../../../fuzz/src/headers.rs"]
mod fuzzed;
#[path = "../../../../fuzz/src/mutate.rs"]
mod mutate;

#[test]
fn mutated_headers_are_parsed_or_ignored() {
    mutate::run(&fuzzed::seeds(), 2000, fuzzed::header);
}
