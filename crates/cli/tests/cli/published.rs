//! Publishes a sandbox's changes as an image and pulls it again, with a real registry, Debian's
//! docker-registry, and a real client, skopeo.

use std::fs;
use std::path::Path;

use micabox_testing::{DockerRegistry, shell};
use serde_json::Value;

use crate::support::Home;

/// Copies an image with skopeo to a directory of blobs. Returns its manifest, its config, and GNU
/// tar's list of its topmost layer.
fn fetched(from: &str, directory: &Path) -> (Value, Value, String) {
    let to = directory.display();
    shell(
        Path::new("/"),
        &format!("skopeo copy --quiet --insecure-policy --src-tls-verify=false {from} dir:{to}"),
    );
    let json = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(directory.join(name)).unwrap()).unwrap()
    };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        digest.strip_prefix("sha256:").unwrap().to_owned()
    };
    let manifest = json("manifest.json");
    let config = json(&blob(&manifest["config"]));
    // Each layer, decompressed by another program, has the config's diff ID.
    let layers = manifest["layers"].as_array().unwrap();
    let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
    assert_eq!(layers.len(), diff_ids.len());
    for (layer, diff_id) in layers.iter().zip(diff_ids) {
        let path = directory.join(blob(layer));
        let sum = shell(
            Path::new("/"),
            &format!("gzip -dc {} | sha256sum", path.display()),
        );
        let sum = format!("sha256:{}", sum.split_whitespace().next().unwrap());
        assert_eq!(*diff_id, sum);
    }
    let top = directory.join(blob(layers.last().unwrap()));
    let list = shell(
        Path::new("/"),
        &format!(
            "tar --numeric-owner --full-time --xattrs -tvvzf {}",
            top.display()
        ),
    );
    // Column widths vary.
    let words = list
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let list = words.collect::<Vec<_>>().join("\n");
    (manifest, config, list)
}

#[test]
#[ignore = "needs a built guest"]
fn committed_changes_are_pushed_and_pulled() {
    const CHANGE: &str = "cd /srv; rm data; rm -r hidden; mkdir hidden; chmod 755 kept; echo new > hidden/new; \
        echo it > it; chown 1000:50 it; chmod 4755 it; ln it twice; ln -s it link; mkfifo pipe; \
        mkdir -p a/b; chmod 1777 a/b; touch -d @1000000000 it";
    const LOOK: &str = "cd /srv; find . | sort; stat -c '%n %a %u %g %h %Y' it twice a/b; \
        readlink link; cat hidden/new it; echo $NEW $PWD; id -u";
    let home = Home::new();
    let registry = DockerRegistry::start(home.path(), "");
    // An attribute that no busybox command can set.
    let patch = home.path().join("patch.tar");
    let mut archive = tar::Builder::new(fs::File::create(&patch).unwrap());
    let note = [("SCHILY.xattr.user.note", &b"kept"[..])];
    archive.append_pax_extensions(note).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_700_000_000);
    header.set_size(0);
    archive
        .append_data(&mut header, "srv/noted", &[][..])
        .unwrap();
    archive.finish().unwrap();
    let patch = patch.to_str().unwrap();
    let disk = ["--upper", "disk:256m", "--patch-tar", patch];
    let run = [
        &["run", "--name", "it"],
        &disk[..],
        &["box", "sh", "-c", CHANGE],
    ]
    .concat();
    home.output(&run).ok();
    let name = format!("{}/team/box:v1", registry.host());
    let command = format!("CMD {LOOK}");
    let commit = [
        "commit",
        "-a",
        "me",
        "-m",
        "why",
        "-c",
        &command,
        "-c",
        "ENV NEW=$FROM_IMAGE",
        "-c",
        "LABEL stage=test",
        "-c",
        "EXPOSE 80",
        "-c",
        "USER app",
        "-c",
        "WORKDIR a",
        "it",
        &name,
    ];
    home.output(&commit).ok();

    // From the local store.
    let seen = home
        .output(&["run", "--rm", "--upper", "disk:64m", &name])
        .ok();
    let ends = "it\nnew\nit\nyes /srv\n1000\n";
    assert!(seen.ends_with(ends), "{seen}");
    assert!(seen.contains("it 4755 1000 50 2 1000000000\n"), "{seen}");
    assert!(
        seen.contains("./kept") && !seen.contains("./data"),
        "{seen}"
    );

    // As an archive and through a registry: the same layers.
    let saved = home.path().join("saved.tar");
    home.output(&["save", "-o", saved.to_str().unwrap(), &name])
        .ok();
    let pushed = home.output(&["push", "--quiet", "--json", &name]).json();
    let (_, from_archive, archived) = fetched(
        &format!("oci-archive:{}", saved.display()),
        &home.path().join("archive"),
    );
    let (manifest, config, list) =
        fetched(&format!("docker://{name}"), &home.path().join("fetched"));
    assert_eq!(config, from_archive);
    assert_eq!(list, archived);
    let manifest_file = home.path().join("fetched/manifest.json");
    let digest = shell(
        Path::new("/"),
        &format!("sha256sum < {}", manifest_file.display()),
    );
    let digest = format!("sha256:{}", digest.split_whitespace().next().unwrap());
    assert_eq!(pushed["manifest_digest"], digest);
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 4);
    for line in [
        "srv/.wh.data",
        "srv/hidden/.wh..wh..opq",
        "srv/link -> it",
        "prw-r--r-- 0/0",
        "x: 4 user.note",
    ] {
        assert!(list.contains(line), "{line} in {list}");
    }
    assert!(
        list.contains("-rwsr-xr-x 1000/50") && list.contains(" link to srv/it"),
        "{list}"
    );
    let run = &config["config"];
    assert_eq!(run["Cmd"], serde_json::json!(["/bin/sh", "-c", LOOK]));
    assert_eq!(
        (&run["User"], &run["WorkingDir"]),
        (&"app".into(), &"/srv/a".into())
    );
    assert_eq!(run["Labels"]["stage"], "test");
    assert_eq!(run["ExposedPorts"], serde_json::json!({"80/tcp": {}}));
    assert_eq!(
        (&config["author"], &config["history"]),
        (&"me".into(), &Value::Null)
    );

    // By mica with an empty store, and from the archive.
    let elsewhere = Home::empty();
    assert_eq!(elsewhere.output(&["run", "--rm", &name]).stdout(), seen);
    let pulled = elsewhere.output(&["inspect", &name]).json();
    assert_eq!(pulled[0]["image"]["config"], config);
    let third = Home::empty();
    third.output(&["load", saved.to_str().unwrap()]).ok();
    let image = third.output(&["images", "--json"]).json();
    let image = image[0]["references"][0].as_str().unwrap().to_owned();
    assert_eq!(third.output(&["run", "--rm", &image]).ok(), seen);
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
    elsewhere.assert_nothing_left();
}
