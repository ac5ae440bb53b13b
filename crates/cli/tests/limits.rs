//! Required limits of a machine's process.

mod support;

use support::Home;

/// Without a control group, a sandbox that requires one does not start, and the message has the
/// reason.
#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_with_required_limits_does_not_start_without_them() {
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
