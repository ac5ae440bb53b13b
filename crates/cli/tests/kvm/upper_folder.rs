//! `--upper folder:DIR` on our own monitor. `scripts/test-kvm` runs this.

use crate::support::Home;
use crate::support::upper::{Place, works};

#[test]
fn changes_in_a_folder_are_those_on_a_disk() {
    works(&Home::new(), "kvm", &Place::in_memory());
}

#[test]
fn a_sandbox_with_its_changes_in_a_folder_is_not_copied() {
    let home = Home::new();
    let place = Place::in_memory();
    let flags = [
        "run",
        "-d",
        "--idle",
        "--name",
        "it",
        "--upper",
        &place.flag(),
    ];
    home.output(&[&flags[..], &["box"]].concat()).ok();
    for copy in [
        &["fork", "it"][..],
        &["snapshot", "create", "--memory", "it", "shot"],
    ] {
        let refused = home.output(copy);
        assert_ne!(refused.code(), 0, "{copy:?}");
        let why = refused.stderr();
        assert!(why.contains("folder"), "{copy:?}: {why}");
    }
    assert!(home.output(&["exec", "it", "true"]).ok().is_empty());
    home.output(&["rm", "-f", "it"]).ok();
    home.assert_nothing_left();
}
