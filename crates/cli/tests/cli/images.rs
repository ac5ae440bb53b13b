//! Commands that need no machine.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Stdio;

use crate::support::{Home, wait_until};

#[test]
fn an_image_can_be_listed_inspected_and_removed() {
    let home = Home::new();
    let images = home.output(&["images", "--json"]).json();
    let digest = images[0]["manifest_digest"].as_str().unwrap().to_owned();
    assert_eq!(images[0]["layers"], 3);
    let table = home.output(&["images"]).ok();
    assert!(
        table.starts_with("IMAGE ") && table.contains("box:latest"),
        "{table}"
    );
    assert_eq!(home.output(&["images", "-q"]).ok(), format!("{digest}\n"));

    let inspected = home.output(&["inspect", "box"]).json();
    let image = &inspected[0]["image"];
    assert_eq!(image["manifest_digest"], *digest);
    assert_eq!(image["references"][0], "docker.io/library/box:latest");
    assert_eq!(image["config"]["config"]["WorkingDir"], "/srv");
    assert_eq!(image["layers"].as_array().unwrap().len(), 3);
    let missing = home.output(&["inspect", "nothing"]);
    assert_eq!(missing.code(), 1);
    assert!(missing.stderr().contains("nothing"), "{}", missing.stderr());

    let usage = home.output(&["store", "df", "--json"]).json();
    assert_eq!(usage["layers"], 3);
    assert!(home.output(&["store", "df"]).ok().contains("box:latest"));

    assert!(home.output(&["rmi", "box"]).ok().contains("freed"));
    assert_eq!(home.output(&["rmi", "box"]).code(), 1);
    assert_eq!(
        home.output(&["images", "--json"]).json(),
        serde_json::json!([])
    );
}

#[test]
fn an_archive_is_named_as_dockers_is_or_comes_on_stdin() {
    let home = Home::new();
    let image = home.output(&["images", "--json"]).json()[0]["manifest_digest"].clone();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image.tar");
    let path = file.to_str().unwrap();
    home.output(&["save", "-o", path, image.as_str().unwrap()])
        .ok();
    let empty = Home::empty();
    for arguments in [
        &["load", path][..],
        &["load", "-i", path],
        &["load", "--input", path, "-q"],
        &["load"],
        &["load", "-"],
    ] {
        let stdin = std::fs::File::open(&file).unwrap();
        let loaded = empty.mica(arguments).stdin(stdin).output().unwrap();
        assert!(loaded.status.success(), "{arguments:?}: {loaded:?}");
        let said = String::from_utf8(loaded.stdout).unwrap();
        assert!(said.contains("sha256:"), "{arguments:?}: {said}");
        empty.output(&["store", "prune", "--all"]).ok();
    }
    assert_eq!(empty.output(&["load", path, "-i", path]).code(), 2);
}

#[test]
fn the_store_is_checked_and_pruned() {
    let home = Home::new();
    assert!(home.output(&["store", "fsck"]).ok().contains("all well"));
    let pruned = home
        .output(&["store", "prune", "--all", "--dry-run", "--json"])
        .json();
    assert_eq!(pruned["layers"].as_array().unwrap().len(), 3);
    home.output(&["store", "prune"]).ok();
    assert_eq!(home.output(&["images", "--json"]).json()[0]["layers"], 3);
    home.output(&["store", "prune", "--all"]).ok();
    assert_eq!(home.output(&["images", "-q"]).ok(), "");

    // An empty store has no problems.
    let empty = Home::empty();
    assert_eq!(
        empty.output(&["ps", "-a", "--json"]).json(),
        serde_json::json!([])
    );
    assert!(empty.output(&["store", "fsck"]).ok().contains("all well"));
}

#[test]
fn help_and_version_are_printed_and_mistakes_are_named() {
    let home = Home::empty();
    assert!(home.output(&["--version"]).ok().starts_with("mica "));
    let help = home.output(&["--help"]).ok();
    for command in ["run", "pull", "store", "doctor"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    assert!(home.output(&["run", "--help"]).ok().contains("Exit codes"));
    assert_eq!(home.output(&["bogus"]).code(), 2);
    assert_eq!(home.output(&["stop", "nobody"]).code(), 1);
}

#[test]
fn the_doctor_names_what_it_looked_at() {
    let home = Home::empty();
    let checks = home.output(&["doctor", "--json"]);
    let checks: serde_json::Value = serde_json::from_str(&checks.stdout()).unwrap();
    let names: Vec<_> = checks
        .as_array()
        .unwrap()
        .iter()
        .map(|check| &check["what"])
        .collect();
    for name in [
        "QEMU",
        "acceleration",
        "memory",
        "guest",
        "store",
        "fs-verity",
        "lazy starts",
        "settings",
    ] {
        assert!(names.contains(&&serde_json::json!(name)), "{names:?}");
    }
    let mut command = home.mica(&["doctor"]);
    let run = command.env("MICABOX_QEMU", "/proc/none").output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stdout).contains("install"));
}

#[test]
fn help_of_a_command_and_versions_for_scripts_are_printed() {
    let home = Home::empty();
    let help = home.output(&["help", "run"]).ok();
    assert!(help.contains("Exit codes"), "{help}");
    assert!(home.output(&["help"]).ok().contains("\n  doctor "));
    assert_eq!(home.output(&["help", "bogus"]).code(), 2);
    let version = env!("CARGO_PKG_VERSION");
    let shown = home.output(&["version"]).ok();
    assert!(
        shown.starts_with(&format!("mica {version}, linux/")),
        "{shown}"
    );
    let format = "{{.Client.Version}} {{.Server.Os}}";
    let shown = home.output(&["version", "--format", format]).ok();
    assert_eq!(shown, format!("{version} linux\n"));
    let json = home.output(&["version", "--json"]).json();
    assert_eq!(json["Client"]["Version"], version);
    let info = home.output(&["info", "--format", "{{.Containers}} {{.OSType}}"]);
    assert_eq!(info.ok(), "0 linux\n");
}

#[test]
fn lists_and_documents_of_images_are_formatted_as_docker_formats_them() {
    let home = Home::new();
    home.output(&["tag", "box", "example.com/team/app:1.2"])
        .ok();
    let digest = home.output(&["images", "-q"]).ok();
    let digest = digest.trim();
    let shown = |arguments: &[&str]| home.output(arguments).ok();
    assert_eq!(
        shown(&["images", "--format", "{{.Repository}}:{{.Tag}}"]),
        "box:latest\nexample.com/team/app:1.2\n"
    );
    let only = [
        "images",
        "-f",
        "reference=example.com/*/app",
        "--format",
        "{{.Tag}}",
    ];
    assert_eq!(shown(&only), "1.2\n");
    assert_eq!(
        shown(&["images", "box", "--format", "{{.ID}}"]).trim(),
        &digest[7..19]
    );
    assert_eq!(shown(&["images", "-q", "-f", "dangling=true"]), "");
    assert_eq!(shown(&["image", "ls", "--no-trunc", "-q"]).trim(), digest);

    let history = home.output(&["history", "box", "--json"]).json();
    assert_eq!(history[0]["id"], digest);
    assert_eq!(history.as_array().unwrap().len(), 3);
    let table = shown(&["history", "box"]);
    assert!(
        table.starts_with("IMAGE ") && table.contains("<missing>"),
        "{table}"
    );
    assert_eq!(
        shown(&["history", "-q", "--no-trunc", "box"])
            .lines()
            .next(),
        Some(digest)
    );

    let documents = home.output(&["inspect", "--type", "image", "box"]).json();
    assert_eq!(documents[0]["Id"], digest);
    assert_eq!(documents[0]["Os"], "linux");
    assert_eq!(
        documents[0]["RootFS"]["Layers"].as_array().unwrap().len(),
        3
    );
    assert_eq!(documents[0]["RepoTags"][0], "docker.io/library/box:latest");
    let format = "{{.Config.WorkingDir}} {{len .RootFS.Layers}}";
    assert_eq!(shown(&["inspect", "-f", format, "box"]), "/srv 3\n");
    // A sandbox is none of this type, as with Docker, and what there is is shown.
    home.output(&["create", "--name", "one", "-l", "app=shop", "box"])
        .ok();
    let mixed = home.output(&[
        "inspect",
        "--type",
        "container",
        "-f",
        "{{.Name}}",
        "one",
        "box",
    ]);
    assert_eq!((mixed.code(), mixed.stdout().as_str()), (1, "/one\n"));
    let format = "{{.State.Status}} {{index .Config.Labels \"app\"}}";
    assert_eq!(
        shown(&["container", "inspect", "-f", format, "one"]),
        "created shop\n"
    );

    let wrong = home.output(&["images", "--format", "{{.Nmae}}"]);
    assert_eq!(wrong.code(), 1);
    assert!(wrong.stderr().contains(".Nmae"), "{}", wrong.stderr());
}

/// A registry that takes the password `open sesame` of `me`, and ends with the test's process.
fn registry() -> String {
    // base64 of `me:open sesame`.
    const TAKEN: &str = "Authorization: Basic bWU6b3BlbiBzZXNhbWU=";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let head: Vec<String> = BufReader::new(&connection)
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let is_taken = head.iter().any(|line| line.eq_ignore_ascii_case(TAKEN));
            let answer = if is_taken {
                "200 OK"
            } else {
                "401 Unauthorized"
            };
            let challenge = "WWW-Authenticate: Basic realm=\"it\"";
            let answer = format!(
                "HTTP/1.1 {answer}\r\n{challenge}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
            );
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn a_login_is_kept_only_if_the_registry_takes_it() {
    let home = Home::empty();
    let registry = registry();
    let docker = home.path().join("docker");
    let login = |words: &[&str], password: &str| {
        let mut command = home.mica(words);
        command.env("DOCKER_CONFIG", &docker).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // One that wants no password does not read it.
        let _ = stdin.write_all(password.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let from_stdin = ["login", "-u", "me", "--password-stdin", &registry];
    let (code, out, err) = login(&from_stdin, "guess\n");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.contains("does not take this user name and password"),
        "{err}"
    );
    assert!(!docker.exists());

    let (code, out, err) = login(&from_stdin, "open sesame\n");
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "Login Succeeded\n"),
        "{err}"
    );
    let kept = fs::read_to_string(docker.join("config.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    let expected = serde_json::json!({"auths": {&registry: {"auth": "bWU6b3BlbiBzZXNhbWU="}}});
    assert_eq!(kept, expected);
    // Without a user, those that are kept are tried.
    let (code, out, err) = login(&["login", &registry], "");
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "Login Succeeded\n"),
        "{err}"
    );

    let (code, out, _) = login(&["logout", &registry], "");
    assert_eq!(
        (code, out),
        (Some(0), format!("Removed the login of {registry}\n"))
    );
    let (code, out, _) = login(&["logout", &registry], "");
    assert_eq!(
        (code, out),
        (Some(0), format!("Not logged in to {registry}\n"))
    );
    let (code, _, err) = login(&["login", &registry], "");
    assert_eq!(code, Some(1));
    assert!(
        err.contains("no terminal") && err.contains("--password-stdin"),
        "{err}"
    );
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_packed_image_is_used_as_any_other() {
    let home = Home::new();
    let saved = |name: &str| {
        let path = home.path().join(name);
        home.output(&["save", "-o", path.to_str().unwrap(), "box"])
            .ok();
        fs::read(path).unwrap()
    };
    let before = saved("before.tar");
    let pack = |words: &[&str]| {
        let all = [&["store", "pack", "--json"], words].concat();
        let report = home.output(&all).json();
        report["packed"].as_array().unwrap().len()
    };
    let packed = pack(&["box"]);
    assert!(packed > 0);
    let usage = home.output(&["store", "df", "--json"]).json();
    assert_eq!(usage["packed_layers"], packed);
    let table = home.output(&["store", "df"]).ok();
    assert!(
        table.contains(&format!("of them {packed} packed")),
        "{table}"
    );

    // What needs no file of a layer leaves it packed.
    assert!(saved("packed.tar") == before);
    assert!(
        home.output(&["store", "fsck", "--archives"])
            .ok()
            .contains("all well")
    );
    home.output(&["inspect", "box"]).ok();
    assert_eq!(home.output(&["store", "df", "--json"]).json(), usage);

    // A start unpacks it, before or in the background.
    for flags in [&[][..], &["--transport", "blk"], &["--backend", "host"]] {
        let words = [&["run", "--rm"], flags, &["box", "echo", "here"]].concat();
        let output = home.output(&words);
        assert_eq!((output.code(), &*output.stdout()), (0, "here\n"));
        // Those that hold the image for machines end when it is unpacked.
        home.assert_nothing_left();
        let usage = home.output(&["store", "df", "--json"]).json();
        assert_eq!(usage["packed_layers"], 0);
        assert_eq!(pack(&["--all"]), packed);
    }
    let place = home.path().join("place");
    fs::create_dir(&place).unwrap();
    let place = place.to_str().unwrap();
    home.output(&["mount", "box", place]).ok();
    assert!(fs::read_dir(place).unwrap().count() > 0);
    assert_eq!(pack(&["--all"]), 0, "it is in use");
    home.output(&["umount", place]).ok();
    assert_eq!(pack(&["--unused-for", "1h"]), 0);
    assert_eq!(pack(&["--unused-for", "0"]), packed);
    // The files of layers that are whole: those that it leaves so.
    let whole = || {
        let mut find = std::process::Command::new("find");
        find.arg(home.store().join("layers"))
            .args(["-name", "*.erofs"]);
        let found = String::from_utf8(find.output().unwrap().stdout).unwrap();
        found.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let packed_whole = whole();
    home.output(&["create", "-q", "--name", "it", "box"]).ok();
    home.output(&["rm", "it"]).ok();
    // The server of its layers keeps the image in use until it has unpacked it.
    home.assert_nothing_left();
    assert_ne!(whole(), packed_whole);
    // In the background, as after a pull.
    let background = ["store", "pack", "--starts-another", "--unused-for", "0"];
    home.output(&background).ok();
    // By its files: it leaves to a later one what it can't do at once, as when a command looks at the store.
    wait_until("packing", || whole() == packed_whole);
    let usage = home.output(&["store", "df", "--json"]).json();
    assert_eq!(usage["packed_layers"], packed);
    assert_eq!(home.output(&["store", "unpack", "box"]).ok(), "");
    assert!(
        home.output(&["store", "pack", "box"])
            .ok()
            .contains("freed, 0 B added")
    );
}
