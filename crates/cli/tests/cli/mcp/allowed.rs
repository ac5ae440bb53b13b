//! What a model may reach and take, unless a flag allows more.

use super::*;

#[test]
fn what_reaches_this_machine_or_its_network_is_refused_unless_a_flag_allows_it() {
    let home = Home::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let registry = listener.local_addr().unwrap().to_string();
    let option = |name: &str, value: Value| json!({"image": "box", "options": {name: value}});
    let image = format!("{registry}/x:tag");
    let mounted = format!("type=image,source={image},target=/x");
    let cases = [
        (
            option("net-allow", json!(["127.0.0.1"])),
            "--allow-host-network",
        ),
        (
            option("net_allow", json!("127.0.0.0/8:80")),
            "--allow-host-network",
        ),
        (
            option("net-allow=169.254.169.254", json!(true)),
            "--allow-host-network",
        ),
        (
            option("dns", json!("127.0.0.1:5353")),
            "--allow-host-network",
        ),
        (option("publish", json!(["0:80"])), "--allow-publish"),
        (
            option("publish=0.0.0.0:0:80/udp", json!(true)),
            "--allow-publish",
        ),
        (
            option("nested-virtualization", json!(true)),
            "--allow-host-backend",
        ),
        (json!({"image": image}), "--allow-registry"),
        (
            json!({"image": image, "options": {"pull": "always"}}),
            "--allow-registry",
        ),
        (
            json!({"image": image, "network": false}),
            "--allow-registry",
        ),
        (option("mount", json!(mounted)), "--allow-registry"),
        (
            json!({"image": "ghcr.io/team/box"}),
            "--allow-registry ghcr.io",
        ),
    ];
    let flags = [
        "--allow-host-paths",
        "--allow-host-backend",
        "--allow-host-network",
        "--allow-publish",
    ];
    for (arguments, flag) in &cases {
        // With all flags but the one that it needs.
        let others: Vec<_> = flags.into_iter().filter(|other| other != flag).collect();
        let mut client = Client::allowed(&home, &others);
        let said = client.refused("create_sandbox", arguments.clone());
        assert!(
            said.contains(&format!("`mica mcp {flag}")),
            "{arguments}: {said}"
        );
        client.end();
    }
    // Nothing was connected to.
    assert!(listener.accept().is_err());
    home.assert_nothing_left();
}

#[test]
fn what_takes_from_this_machine_is_refused_unless_a_flag_allows_it() {
    let home = Home::new();
    let option = |name: &str, value: Value| json!({"image": "box", "options": {name: value}});
    let taking = [
        json!({"image": "box", "volumes": ["name:/x", "/etc:/x:ro"]}),
        json!({"image": "box", "volumes": ["./relative:/x"]}),
        option("volume", json!("/etc:/x")),
        option("volume=/etc:/x", json!(true)),
        option("mount", json!(["type=bind,source=/etc,target=/x"])),
        option("upper", json!("folder:/etc")),
        option("patch", json!(["/etc/passwd:/x"])),
        option("patch_tar", json!("/etc/passwd")),
        option("patch-tar", json!("/etc/passwd")),
        option("env_file", json!("/etc/passwd")),
        option("label_file", json!("/etc/passwd")),
        option("vsock", json!("/tmp/socket")),
        option("env", json!(["PATH"])),
        json!({"options": {"root_disk": "/etc/passwd"}}),
    ];
    for flags in [&[][..], &["--allow-host-backend"]] {
        let mut client = Client::allowed(&home, flags);
        for arguments in &taking {
            let said = client.refused("create_sandbox", arguments.clone());
            assert!(
                said.contains("--allow-host-paths") && said.contains("from this machine"),
                "{arguments}: {said}"
            );
        }
        client.end();
    }
    // No folder was made for it.
    assert!(!std::path::Path::new("relative").exists());
    let mut client = Client::allowed(&home, &["--allow-host-paths"]);
    for options in [json!({"backend": "host"}), json!({"backend=host": true})] {
        let said = client.refused(
            "create_sandbox",
            json!({"image": "box", "options": options}),
        );
        assert!(said.contains("--allow-host-backend"), "{said}");
    }
    // Allowed, it fails for another reason.
    let said = client.refused(
        "create_sandbox",
        json!({"options": {"root_disk": "/proc/none"}}),
    );
    assert!(
        said.contains("/proc/none") && !said.contains("--allow"),
        "{said}"
    );
    client.end();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn what_is_allowed_is_taken_from_this_machine() {
    let home = Home::new();
    let file = home.path().join("variables");
    std::fs::write(&file, "OF_FILE=seen\n").unwrap();
    let mut client = Client::allowed(&home, &["--allow-host-paths", "--allow-host-backend"]);
    let options = json!({"backend": "host", "env_file": file, "env": ["MICABOX_HOME"]});
    let create = json!({"image": "box", "name": "it", "network": false, "options": options});
    client.tool("create_sandbox", create);
    let said = client.sh("it", "echo $OF_FILE $MICABOX_HOME");
    assert_eq!(said, (0, format!("seen {}\n", home.store().display())));
    client.end();

    // A server that may not make such a sandbox uses one that its user has made.
    let made = [
        "run",
        "-dq",
        "--idle",
        "--rm",
        "--backend",
        "host",
        "--net",
        "none",
        "--name",
        "made",
        "box",
    ];
    home.output(&made).ok();
    let mut client = Client::allowed(&home, &[]);
    assert_eq!(client.sh("made", "echo here").1, "here\n");
    client.tool("stop_sandbox", json!({"sandbox": "made", "grace": 0}));
    client.end();
    home.assert_nothing_left();
}
