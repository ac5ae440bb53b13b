//! Runs the fuzz targets on mutated archives, blobs, documents and recipes.

#[allow(missing_docs)]
#[path = "../../../../fuzz/src/archive.rs"]
mod archive;
#[allow(missing_docs)]
#[path = "../../../../fuzz/src/compressed.rs"]
mod compressed;
#[allow(missing_docs)]
#[path = "../../../../fuzz/src/documents.rs"]
mod documents;
#[allow(dead_code, reason = "stacks are for another target")]
#[path = "../../../../fuzz/src/erofs_seeds.rs"]
mod erofs_seeds;
#[path = "../../../../fuzz/src/mutate.rs"]
mod mutate;
#[path = "../../../../fuzz/src/recipe.rs"]
mod recipe;

#[test]
fn members_of_mutated_archives_are_bounded_and_the_same_in_any_pieces() {
    mutate::run(&archive::seeds(), 2000, archive::tar);
}

#[test]
fn a_mutated_archive_that_becomes_a_layer_can_be_had_back() {
    mutate::run(&archive::seeds(), 300, archive::layer);
}

#[test]
fn a_mutated_image_that_becomes_a_layer_is_sound_and_within_the_limits() {
    mutate::run(&erofs_seeds::images(), 300, archive::native);
    mutate::run(&erofs_seeds::images(), 300, archive::device);
}

#[test]
fn mutated_blobs_end_within_the_limits() {
    mutate::run(&compressed::seeds(), 300, compressed::blob);
}

#[test]
fn mutated_documents_lead_to_what_they_say() {
    mutate::run(&documents::seeds(), 2000, documents::manifest);
    mutate::run(&documents::names(), 2000, documents::reference);
}

#[test]
fn mutated_recipes_make_what_they_say() {
    mutate::run(&recipe::seeds(), 1000, recipe::steps);
}
