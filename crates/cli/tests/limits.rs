//! Limits of a machine's process that must be there.

mod support;

use support::Home;

/// Where no control group can be had, a sandbox that must have one does not start, and the
/// message says why.
#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_that_must_be_limited_is_or_does_not_start() {
    let home = Home::new();
    let whole = micabox_vmm::control_groups();
    let whole = whole.is_ok_and(|(_, controllers)| controllers.len() == 3);
    let run = home.output(&["run", "--rm", "--require-limits", "box", "true"]);
    match whole {
        true => assert_eq!(run.code(), 0, "{}", run.stderr()),
        false => {
            assert_eq!(run.code(), 125);
            assert!(
                run.stderr().contains("can't be limited"),
                "{}",
                run.stderr()
            );
        }
    }
    home.assert_nothing_left();
}
