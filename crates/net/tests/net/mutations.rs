//! Runs the fuzz targets on mutated queries, responses and frames.

#[path = "../../../../fuzz/src/dns.rs"]
mod dns;
#[path = "../../../../fuzz/src/frames.rs"]
mod frames;
#[path = "../../../../fuzz/src/mutate.rs"]
mod mutate;

#[test]
fn mutated_questions_and_answers_are_read_as_another_reader_does() {
    mutate::run(&dns::seeds(), 5000, dns::messages);
}

#[test]
fn the_network_answers_arbitrary_frames_with_sound_ones() {
    mutate::run(&frames::seeds(), 200, frames::frames);
}
