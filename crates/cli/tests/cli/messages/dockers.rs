//! Defaults of Docker's flags, and flags without an effect.

use super::*;

#[test]
fn defaults_of_dockers_that_are_spelled_out_are_as_if_not_given() {
    let home = Home::new();
    let create = [
        "create",
        "--name=",
        "--hostname=",
        "--platform=",
        "--detach-keys=",
        "--stop-signal=",
        "--cidfile=",
        "box",
        "true",
    ];
    let id = home.output(&create).ok();
    assert_eq!(
        home.output(&["ps", "-aq", "-n", "-1", "--no-trunc"]).ok(),
        id
    );
    let record = home.output(&["inspect", id.trim()]).json()[0]["sandbox"].clone();
    let name = record["name"].as_str().unwrap();
    home.output(&["update", "--cpus", "0", "-m", "0", name])
        .ok();
    assert_eq!(home.output(&["inspect", name]).json()[0]["sandbox"], record);
    let table = home.output(&["images"]).ok();
    assert_eq!(home.output(&["images", "--format", ""]).ok(), table);
    let whole = home.output(&["inspect", "--type", "image", "box"]).ok();
    let format = ["inspect", "--type", "image", "--format=", "box"];
    assert_eq!(home.output(&format).ok(), whole);
    home.output(&["rm", name]).ok();
}

#[test]
fn a_flag_without_an_effect_is_noticed_unless_all_is_to_be_quiet() {
    let home = Home::new();
    let emulated = micabox_vmm::expect(micabox::BackendChoice::Auto).is_ok_and(|backend| {
        let acceleration = backend.acceleration();
        matches!(acceleration, micabox_vmm::Acceleration::Emulated { .. })
    });
    for (flags, notice) in [
        (
            &["--trim", "/nosuch"][..],
            "mica: --trim leaves nothing out: ",
        ),
        (&["--trim", "/bin"], ""),
        (
            &["--nested-virtualization"],
            if emulated {
                "mica: --nested-virtualization changes nothing: the machine is emulated ("
            } else {
                ""
            },
        ),
    ] {
        let create = |first: &[&str]| {
            let words = [first, flags, &["box", "true"]].concat();
            let finished = home.output(&words);
            assert_eq!(finished.code(), 0, "{}", finished.stderr());
            home.output(&["rm", finished.stdout().trim()]).ok();
            finished.stderr()
        };
        let said = create(&["create"]);
        let is_said = said.starts_with(notice) && said.lines().count() <= 1;
        assert!(is_said && said.is_empty() == notice.is_empty(), "{said}");
        assert_eq!(create(&["create", "-q"]), "");
    }
}

#[test]
#[ignore = "needs root"]
fn a_limit_of_processes_that_can_not_be_had_on_the_hosts_kernel_says_so_once() {
    let home = Home::new();
    let run = [
        "run",
        "--rm",
        "--backend",
        "host",
        "--pids-limit",
        "5",
        "box",
        "true",
    ];
    let refused = in_namespace(&home, "mount -t tmpfs none /sys/fs/cgroup", &run);
    assert_eq!(refused.code(), 125);
    let said = refused.stderr();
    let begins = "mica: the host backend limits processes and threads by a control group, and can't have one: ";
    assert!(said.starts_with(begins), "{said}");
    assert!(
        said.contains("omit --pids-limit") && !said.contains("machine"),
        "{said}"
    );
}
