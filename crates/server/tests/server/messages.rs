//! Runs the fuzz targets on mutated messages of E2B's clients, and on those of interpreters.

#[path = "../../../../fuzz/src/e2b.rs"]
mod e2b;
#[path = "../../../../fuzz/src/mutate.rs"]
mod mutate;

#[test]
fn messages_of_a_mutated_stream_are_the_same_in_any_pieces() {
    mutate::run(&e2b::streams(), 3000, e2b::stream);
}

#[test]
fn parts_of_a_mutated_body_are_bounded_and_the_same_in_any_pieces() {
    mutate::run(&e2b::bodies(), 1000, e2b::parts);
}

#[test]
fn replies_of_a_mutated_interpreter_are_passed_on_as_they_are_written() {
    mutate::run(&e2b::said(), 3000, e2b::replies);
}
