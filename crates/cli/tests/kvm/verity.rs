//! Guests that check what they read of their image, on our own monitor. `scripts/test-kvm` runs these.

use crate::support::packed::home;
use crate::support::verity::{AROUND, BLOCK, change, is_io_error};

#[test]
fn a_machine_checks_its_image_from_its_boot_from_a_template_and_in_its_copies() {
    let home = home();
    let run = ["run", "-q", "--backend", "kvm", "--verity"];
    let start = |more: &[&str]| home.output(&[&run, more, &["box", "sleep", "1000"]].concat());
    // The first boots and leaves a template, the second is made from that.
    home.output(&[&run[..], &["--rm", "box", "true"]].concat())
        .ok();
    start(&["-d", "--name", "it"]).ok();
    home.output(&["fork", "it", "--name", "copy"]).ok();
    change(&home);
    let exec = |name, script| home.output(&["exec", name, "sh", "-c", script]);
    let around = exec("it", AROUND).ok();
    for name in ["it", "copy"] {
        let broken = exec(name, BLOCK);
        let said = broken.stdout();
        assert!(broken.code() != 0 && is_io_error(&said), "{name}: {said}");
        assert_eq!(exec(name, AROUND).ok(), around);
    }
    home.output(&["rm", "-f", "it", "copy"]).ok();
    home.assert_nothing_left();
}
