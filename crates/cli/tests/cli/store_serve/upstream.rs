//! Names, and registries behind `mica store serve`.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Stdio};

use micabox_testing::DockerRegistry;

use super::{Replica, config_of, status, with_settings};
use crate::support::full::{self, SmallDisk};
use crate::support::{Home, image};

#[test]
fn what_is_asked_for_is_pulled_and_stays_when_its_registry_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let source = Home::new();
    let upstream = registry.host().to_owned();
    assert_eq!(
        source
            .output(&["push", "box", &format!("{upstream}/team/box:1")])
            .code(),
        0
    );
    let home = Home::empty();
    let log = directory.path().join("log");
    let mut mica = home.mica(&[
        "store",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--pull-through",
        &upstream,
    ]);
    mica.stderr(fs::File::create(&log).unwrap());
    let replica = Replica::of(mica);

    // As a mirror, which is asked with the name of what it mirrors.
    let settings = directory.path().join("config.toml");
    let mirror = format!(
        "[registry.\"{upstream}\"]\nmirrors = [\"http://{}\"]\n",
        replica.host
    );
    fs::write(&settings, mirror).unwrap();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let client = Home::empty();
            let mut mica = client.mica(&["pull", &format!("{upstream}/team/box:1")]);
            mica.env("MICABOX_CONFIG", &settings).stdout(Stdio::null());
            let process: Child = mica.spawn().unwrap();
            (client, process)
        })
        .collect();
    for (client, mut process) in clients {
        assert!(process.wait().unwrap().success());
        let name = format!("{upstream}/team/box:1");
        assert_eq!(config_of(&client, &name), config_of(&source, "box"));
    }
    assert!(fs::read_to_string(&log).unwrap().contains("mica: pulled "));
    // No other registry is asked, whatever a client says, and nothing there is known.
    for path in [
        "/v2/team/box/manifests/1?ns=other.example",
        "/v2/other.example/team/box/manifests/1",
    ] {
        assert_eq!(status(&replica.get(path)), "404", "{path}");
    }
    assert!(
        !fs::read_to_string(&log)
            .unwrap()
            .contains("other.example/team")
    );
    assert_eq!(status(&replica.get("/v2/team/box/manifests/2")), "404");

    // A server like this one may be waiting for its own pull, also behind a proxy.
    let before = fs::read_to_string(&log).unwrap();
    for via in [
        "1.1 mica",
        "1.1 mica, 1.1 other",
        "1.0 other\r\nVia: 2 mica",
    ] {
        let head = format!("GET /v2/team/none/manifests/1 HTTP/1.1\r\nVia: {via}");
        assert_eq!(status(&replica.ask(&head)), "404", "{via}");
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), before);
    let other = "GET /v2/team/none/manifests/1 HTTP/1.1\r\nVia: 1.1 other";
    assert_eq!(status(&replica.ask(other)), "404");
    assert_ne!(fs::read_to_string(&log).unwrap(), before);

    drop(registry);
    let client = Home::empty();
    client.output(&["pull", &replica.name("team/box:1")]).ok();
    replica.end();
}

#[test]
fn a_name_is_one_registrys_whatever_else_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let upstream = registry.host().to_owned();
    let home = Home::new();
    let (hubs, theirs) = ("team/box:1", format!("{upstream}/team/box:1"));
    assert_eq!(home.output(&["push", "box", &theirs]).code(), 0);
    home.output(&["rmi", "box"]).ok();
    let mut config = image::config();
    config["author"] = "another".into();
    home.load(&image::layers(), &config);
    home.output(&["tag", "box", hubs]).ok();
    home.output(&["pull", &theirs]).ok();
    let (of_hub, of_them) = (config_of(&home, hubs), config_of(&home, &theirs));
    assert_ne!(of_hub, of_them);

    let config = |replica: &Replica, path: &str| {
        let manifest = replica.json(path);
        manifest["config"]["digest"].as_str().map(str::to_owned)
    };
    let by_ns = format!("/v2/team/box/manifests/1?ns={upstream}");
    let replica = Replica::new(&home, &[]);
    assert_eq!(
        config(&replica, "/v2/team/box/manifests/1"),
        Some(of_hub.clone())
    );
    assert_eq!(config(&replica, &by_ns), Some(of_them.clone()));
    replica.end();
    // A registry that is pulled from first has the names that say none.
    let replica = Replica::new(&home, &["--pull-through", &upstream]);
    assert_eq!(
        config(&replica, "/v2/team/box/manifests/1"),
        Some(of_them.clone())
    );
    assert_eq!(
        config(&replica, "/v2/docker.io/team/box/manifests/1"),
        Some(of_hub)
    );
    replica.end();
    // What another registry has is not the default one's.
    home.output(&["rmi", hubs]).ok();
    let replica = Replica::new(&home, &[]);
    for path in ["/v2/team/box/manifests/1", "/v2/team/box/tags/list"] {
        assert_eq!(status(&replica.get(path)), "404", "{path}");
    }
    assert_eq!(config(&replica, &by_ns), Some(of_them));
    replica.end();
}

#[test]
fn a_server_with_the_racks_settings_does_not_ask_itself() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let upstream = registry.host().to_owned();
    let source = Home::new();
    let name = format!("{upstream}/team/box:1");
    assert_eq!(source.output(&["push", "box", &name]).code(), 0);
    // The settings have a port before the server has it. No other process uses this address of the
    // loopback interface.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let port = TcpListener::bind((Ipv4Addr::new(127, a | 64, b, c), 0)).unwrap();
    let address = port.local_addr().unwrap().to_string();
    let settings = directory.path().join("config.toml");
    let mirror = format!("[registry.\"{upstream}\"]\nmirrors = [\"http://{address}\"]\n");
    fs::write(&settings, mirror).unwrap();
    drop(port);
    let home = Home::empty();
    let mut mica = home.mica(&[
        "store",
        "serve",
        "--listen",
        &address,
        "--pull-through",
        &upstream,
    ]);
    mica.env("MICABOX_CONFIG", &settings);
    let replica = Replica::of(mica);
    let client = Home::empty();
    // It says nothing of a mirror that was passed over.
    with_settings(&client, &settings, &["pull", &name]).ok();
    replica.end();
}

#[test]
fn servers_that_mirror_each_other_see_that_a_tag_has_moved() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let upstream = registry.host().to_owned();
    let source = Home::new();
    let name = format!("{upstream}/team/box:1");
    source.output(&["push", "-q", "box", &name]).ok();
    // No other process uses this address of the loopback interface.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let ports =
        [(); 2].map(|()| TcpListener::bind((Ipv4Addr::new(127, a | 128, b, c), 0)).unwrap());
    let [one, other] = ports.map(|port| port.local_addr().unwrap().to_string());
    let homes = [&one, &other].map(|mirror| {
        let home = Home::empty();
        let mirror = format!("[registry.\"{upstream}\"]\nmirrors = [\"http://{mirror}\"]\n");
        fs::write(home.path().join("config.toml"), mirror).unwrap();
        home
    });
    // The result of a pull answers for others for a moment: other servers know of none.
    let serve = || {
        let addresses = [&other, &one].into_iter().zip(&homes);
        let replicas = addresses.map(|(address, home)| {
            let listen = ["store", "serve", "--listen", address];
            let mut mica = home.mica(&[&listen[..], &["--pull-through", &upstream]].concat());
            mica.env("MICABOX_CONFIG", home.path().join("config.toml"));
            Replica::of(mica)
        });
        Vec::from_iter(replicas)
    };
    let config = |replica: &Replica| {
        let manifest = replica.json("/v2/team/box/manifests/1");
        manifest["config"]["digest"].as_str().unwrap().to_owned()
    };
    let before = config_of(&source, "box");
    let replicas = serve();
    for replica in &replicas {
        assert_eq!(config(replica), before);
    }
    replicas.into_iter().for_each(Replica::end);

    let mut newer = image::config();
    newer["author"] = "another".into();
    let source = Home::empty();
    source.load(&image::layers(), &newer);
    source.output(&["push", "-q", "box", &name]).ok();
    let after = config_of(&source, "box");
    assert_ne!(before, after);
    let replicas = serve();
    for replica in &replicas {
        assert_eq!(config(replica), after);
    }
    drop(registry);
    replicas.into_iter().for_each(Replica::end);
    let replicas = serve();
    for replica in &replicas {
        assert_eq!(config(replica), after);
    }
    replicas.into_iter().for_each(Replica::end);
}

#[test]
fn an_image_that_is_removed_is_pulled_again_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let upstream = registry.host().to_owned();
    let source = Home::new();
    let name = format!("{upstream}/team/box:1");
    source.output(&["push", "-q", "box", &name]).ok();
    let home = Home::empty();
    let replica = Replica::new(&home, &["--pull-through", &upstream]);
    for remove in [&["rmi", &name][..], &["store", "prune", "--all"], &[]] {
        let reply = replica.get("/v2/team/box/manifests/1");
        assert_eq!(status(&reply), "200", "before {remove:?}");
        if !remove.is_empty() {
            home.output(remove).ok();
        }
    }
    replica.end();
}

#[test]
fn clients_are_not_told_what_is_this_machines() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("config.toml");
    // A registry that there is not, with an authority that can't be read.
    let registry = "127.0.0.1:1";
    let table = format!("[registry.\"{registry}\"]\nplain-http = false\nca = [\"secret.pem\"]\n");
    fs::write(&settings, table).unwrap();
    let home = Home::empty();
    let log = directory.path().join("log");
    let mut mica = home.mica(&[
        "store",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--pull-through",
        registry,
    ]);
    mica.env("MICABOX_CONFIG", &settings)
        .stderr(fs::File::create(&log).unwrap());
    let replica = Replica::of(mica);
    let refused = replica.get("/v2/team/box/manifests/1");
    assert_eq!(status(&refused), "502");
    let said = String::from_utf8_lossy(&refused.1).into_owned();
    assert!(
        !said.contains("secret") && said.contains("the server says why"),
        "{said}"
    );
    assert!(fs::read_to_string(&log).unwrap().contains("secret.pem"));
    replica.end();

    fs::write(&settings, "").unwrap();
    let mut mica = home.mica(&[
        "store",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--pull-through",
        registry,
    ]);
    mica.env("MICABOX_CONFIG", &settings).stderr(Stdio::null());
    let replica = Replica::of(mica);
    let refused = replica.get("/v2/team/box/manifests/1");
    assert_eq!(status(&refused), "502");
    let said = String::from_utf8_lossy(&refused.1).into_owned();
    assert!(said.contains("127.0.0.1:1 can't be reached"), "{said}");
    replica.end();
}

#[test]
fn what_a_policy_refuses_now_is_not_served_because_it_was_pulled_before() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let upstream = registry.host().to_owned();
    let source = Home::new();
    let name = format!("{upstream}/team/box:1");
    source.output(&["push", "-q", "box", &name]).ok();
    let home = Home::empty();
    let settings = directory.path().join("config.toml");
    fs::write(&settings, "policy = \"policy.json\"\n").unwrap();
    for (requirement, expected) in [("insecureAcceptAnything", "200"), ("reject", "403")] {
        let policy = format!(r#"{{"default": [{{"type": "{requirement}"}}]}}"#);
        fs::write(directory.path().join("policy.json"), policy).unwrap();
        let listen = ["store", "serve", "--listen", "127.0.0.1:0"];
        let mut mica = home.mica(&[&listen[..], &["--pull-through", &upstream]].concat());
        mica.env("MICABOX_CONFIG", &settings);
        let replica = Replica::of(mica);
        let reply = replica.get(&format!("/v2/team/box/manifests/1?ns={upstream}"));
        assert_eq!(status(&reply), expected);
    }
}

#[test]
#[ignore = "needs root: it mounts a small filesystem"]
fn a_full_disk_is_named_to_the_servers_owner_alone_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let upstream = registry.host().to_owned();
    let source = Home::new();
    let name = format!("{upstream}/team/box:1");
    source.output(&["push", "-q", "box", &name]).ok();
    let home = Home::empty();
    let disk = SmallDisk::new(&home, "96m");
    // A server gives the same answer for a while, so that each amount of room has its own.
    let mut room = 0;
    loop {
        disk.fill(room);
        let log = directory.path().join("log");
        let listen = ["store", "serve", "--listen", "127.0.0.1:0"];
        let mut mica = home.mica(&[&listen[..], &["--pull-through", &upstream]].concat());
        mica.stderr(fs::File::create(&log).unwrap());
        let replica = Replica::of(mica);
        let reply = replica.get("/v2/team/box/manifests/1");
        if status(&reply) == "200" {
            replica.end();
            break;
        }
        assert_eq!(status(&reply), "500");
        let (body, path) = (String::from_utf8_lossy(&reply.1), home.store());
        assert!(body.contains("the server says why"), "{body}");
        assert!(!body.contains(path.to_str().unwrap()), "{body}");
        // It goes on serving.
        assert_eq!(status(&replica.get("/v2/")), "200");
        replica.end();
        full::assert_named(&home, &fs::read_to_string(&log).unwrap());
        // What conversions that were under way have left goes with the next use of the store.
        assert_eq!(home.output(&["images", "-q"]).ok(), "");
        assert_eq!(fs::read_dir(path.join("tmp")).unwrap().count(), 0);
        room += 256 << 10;
    }
    assert!(
        room >= 5 * (256 << 10),
        "there was room from {room} bytes on"
    );
    disk.make_room();
    home.output(&["store", "fsck"]).ok();
    assert_eq!(config_of(&home, &name), config_of(&source, "box"));
}
