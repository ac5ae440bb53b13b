//! The fuzz target's work on mutated requests; EROFS images as they are served.

mod erofs;

#[path = "../../../../fuzz/src/requests.rs"]
mod fuzzed;
#[path = "../../../../fuzz/src/mutate.rs"]
mod mutate;

#[test]
fn mutated_requests_mean_what_they_say_or_nothing() {
    mutate::run(&fuzzed::seeds(), 2000, fuzzed::request);
}
