//! A store that the program of commit 4299c88 has made: an image, a sandbox that has ended, with its disk, a snapshot
//! of that, and a volume. It was written by that program alone; the image's only program is `/tiny`, of 808 bytes,
//! which writes `kept` into /marker or prints what is there.

use std::process::Command;

use crate::support::Home;

const ARCHIVE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/cli/earlier-store.tar.gz"
);

fn earlier() -> Home {
    let home = Home::empty();
    let store = home.store();
    std::fs::create_dir_all(&store).unwrap();
    let unpacked = Command::new("tar")
        .args(["--no-same-owner", "-xzf", ARCHIVE, "-C"])
        .arg(store)
        .status();
    assert!(unpacked.unwrap().success());
    home
}

#[test]
fn an_earlier_store_is_listed_and_whole() {
    let home = earlier();
    assert!(home.output(&["store", "fsck"]).ok().contains("all well"));
    let digest = "sha256:f5c4739e00b42bdba4fb76a1d4d5cff5052a00bc3bf034f9a88ae42c83434413";
    let images = home.output(&["images", "--json"]).json();
    assert_eq!(images[0]["manifest_digest"], digest);
    let sandboxes = home.output(&["ps", "-a", "--json"]).json();
    let sandbox = &sandboxes[0];
    assert_eq!(sandbox["name"], "kept");
    assert_eq!(sandbox["state"], "exited");
    assert_eq!(sandbox["memory_mib"], 96);
    assert_eq!(sandbox["labels"]["made"], "before");
    assert_eq!(sandbox["defaults"]["env"][2][1], "2");
    assert_eq!(home.output(&["diff", "kept"]).ok(), "A /marker\n");
    let snapshots = home.output(&["snapshot", "ls", "--json"]).json();
    assert_eq!(snapshots[0]["name"], "shot");
    let volumes = home.output(&["volume", "ls", "--json"]).json();
    assert_eq!(volumes[0]["name"], "data");
    // What it has is committed, and what is removed leaves nothing.
    home.output(&["commit", "kept", "after"]).ok();
    home.output(&["rm", "kept"]).ok();
    home.output(&["snapshot", "rm", "shot"]).ok();
    home.output(&["volume", "rm", "data"]).ok();
    assert!(home.output(&["store", "fsck"]).ok().contains("all well"));
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn an_earlier_sandbox_starts_again_and_its_snapshot_has_copies() {
    let home = earlier();
    let run = ["run", "--rm", "--backend", "qemu"];
    let from = [&run[..], &["--from", "shot", "/tiny", "read"]].concat();
    assert_eq!(home.output(&from).ok(), "kept\n");
    let again = [&run[..], &["earlier"]].concat();
    assert_eq!(home.output(&again).ok(), "none\n");
    // Its command and its settings are those of its first start.
    home.output(&["start", "-a", "kept"]).ok();
    let inspected = home.output(&["inspect", "kept"]).json();
    let sandbox = &inspected[0]["sandbox"];
    assert_eq!(sandbox["memory_mib"], 96, "{sandbox}");
    assert_eq!(sandbox["spec"]["hostname"], "h", "{sandbox}");
    let volume = [&run[..], &["-v", "data:/data", "earlier"]].concat();
    assert_eq!(home.output(&volume).ok(), "none\n");
}
