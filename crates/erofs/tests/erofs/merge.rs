//! Checks the merge against a model of overlayfs's rules, without privileges.

use std::io::Cursor;

use micabox_erofs::merge::{Layer, Merge};
use micabox_erofs::{Concat, Reader, check};
use proptest::prelude::*;

use crate::support::snapshot::{self, Ignore, Snapshot, assert_same};
use crate::support::spec::{self, Entry};
use crate::support::{model, random};

const ALIGNMENT: u32 = 4;

fn merge(layers: &[Vec<u8>]) -> micabox_erofs::Result<Merge> {
    let layers: Vec<_> = layers
        .iter()
        .map(|image| Layer {
            image,
            tag: b"layer",
        })
        .collect();
    Merge::of(&layers, ALIGNMENT)
}

/// Reads a metadata-only image together with the layers.
fn read(meta: Vec<u8>, layers: &[Vec<u8>]) -> Snapshot {
    let all = std::iter::once(&meta).chain(layers);
    let flat = Concat::new(all, u64::from(ALIGNMENT) * 4096).unwrap();
    snapshot::of_image(&Reader::open(flat).unwrap())
}

fn fsmeta(merge: &Merge) -> Vec<u8> {
    merge
        .write_fsmeta(Cursor::new(Vec::new()), [9; 16])
        .unwrap()
        .0
        .into_inner()
}

fn check(layers: &[Vec<Entry>]) {
    let images: Vec<Vec<u8>> = layers.iter().map(|entries| spec::image(entries)).collect();
    let merge = merge(&images).unwrap();
    let fsmeta = fsmeta(&merge);
    assert_eq!(check::check(&fsmeta), []);
    let seen = read(fsmeta, &images);
    assert_same("fsmeta", &seen, &model::view(layers), Ignore::default());
    check_fixup(layers, &images, &merge);
}

/// Checks that with the fixup on top, overlayfs shows the same for the stack, without the rules
/// that only the merge has.
fn check_fixup(layers: &[Vec<Entry>], images: &[Vec<u8>], merge: &Merge) {
    let (fixup, _) = merge.write_fixup(Cursor::new(Vec::new()), [8; 16]).unwrap();
    let mut stack: Vec<Snapshot> = images[merge.first_layer()..]
        .iter()
        .rev()
        .map(|image| snapshot::of_image(&Reader::open(image).unwrap()))
        .collect();
    assert_eq!(check::check(fixup.get_ref()), []);
    if merge.needs_fixup() {
        stack.insert(0, read(fixup.into_inner(), images));
    }
    if !stack.is_empty() {
        let ignore = Ignore {
            merged_directory_nlink: true,
            ..Ignore::default()
        };
        assert_same(
            "stack",
            &model::overlay(&stack),
            &model::view(layers),
            ignore,
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(3000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_stacks_merge_as_the_model_says(stack in random::stacks(5)) {
        check(&random::layers(&stack));
    }
}
