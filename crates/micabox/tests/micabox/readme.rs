//! The example in the guide (docs/guide.md) is the one that this crate's documentation has, where it is
//! compiled.

/// Returns the first block of Rust in a text.
fn block(text: &str) -> &str {
    let (_, rest) = text.split_once("```rust").unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn the_example_is_the_one_that_is_compiled() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let compiled = include_str!("../../README.md");
    assert_eq!(block(&guide), block(compiled));
    assert!(block(compiled).contains("fn main"));
}
