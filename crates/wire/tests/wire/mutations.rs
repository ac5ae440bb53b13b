//! Runs the fuzz target on mutated conversations.

#[path = "../../../../fuzz/src/mutate.rs"]
mod mutate;
#[path = "../../../../fuzz/src/wire.rs"]
mod wire;

#[test]
fn mutated_streams_are_the_same_in_any_pieces() {
    mutate::run(&wire::seeds(), 2000, wire::stream);
}
