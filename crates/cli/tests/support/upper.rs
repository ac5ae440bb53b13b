//! A sandbox whose changes are in a folder of the host, on any backend.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Home;

/// Makes changes of every kind, as root and as another user, and shows what there is then.
pub const CHANGE: &str = r#"
cd /srv; echo new > added; ln added hardlink; ln -s data link; mkfifo pipe
mkdir -p dir/in; echo x > dir/in/side; chown 1000 dir/in/side; chmod 4750 dir/in/side
rm data; rm -r hidden; rm -r kept; mkdir kept; echo fresh > kept/fresh; chmod 600 run
truncate -s 5M sparse; echo end >> sparse; mkdir twice; rmdir twice; echo > /home/app/of-root
mkdir -m 2775 group; chgrp 50 group; touch group/in; mv dir moved; mkdir dir; mv run ran; echo > run
touch set-id; chmod 4757 set-id; chmod 1777 moved; ln -sf elsewhere hard
su app -c 'echo by app >> set-id; cd /tmp; echo mine > mine; mkdir -p d/e; ln -s e d/link; mv mine d/e'
touch -h -d '2001-02-03 04:05:06' /tmp/d/link; touch -d '2001-02-03 04:05:06' added
ls -lnR /srv /tmp | awk '{ if (/^d/) $5 = ""; $2 = $6 = $7 = $8 = ""; print }' | grep -v ^total
"#;

/// A folder that does not exist yet.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// In a tmpfs: on an emulated host, `/tmp` is on overlayfs, which leaves no whiteouts.
    pub fn in_memory() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    pub fn folder(&self) -> PathBuf {
        self.0.path().join("changes")
    }

    /// Returns a path in the upper layer.
    pub fn upper(&self, path: &str) -> PathBuf {
        self.folder().join("upper").join(path)
    }

    /// Returns the value of `--upper`.
    pub fn flag(&self) -> String {
        format!("folder:{}", self.folder().display())
    }
}

/// Checks that a path is a whiteout: the character device 0, 0.
#[track_caller]
pub fn assert_whiteout(path: &Path) {
    let meta = fs::symlink_metadata(path).unwrap();
    assert!(meta.file_type().is_char_device(), "{}", path.display());
    assert_eq!(meta.rdev(), 0);
}

/// Checks that a directory hides what is below it, as overlayfs's option `userxattr` has it.
#[track_caller]
pub fn assert_opaque(path: &Path) {
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(path, "user.overlay.opaque", &mut value[..]);
    assert_eq!(length, Ok(1), "{}", path.display());
    assert_eq!(value[0], b'y');
}

/// Makes the same changes on a disk and in a folder: each looks the same from inside, in the list of
/// changes and in a layer; and the folder has them in overlayfs's terms.
pub fn works(home: &Home, backend: &str, place: &Place) {
    let run = |name: &str, upper: &str| {
        let flags = [
            "run",
            "--name",
            name,
            "--backend",
            backend,
            "--upper",
            upper,
        ];
        let run = home.output(&[&flags[..], &["box", "sh", "-c", CHANGE]].concat());
        let seen = run.ok();
        home.output(&["commit", name, &format!("of-{name}")]).ok();
        let layer = last_layer(home, &format!("of-{name}"));
        (seen, home.output(&["diff", name]).ok(), layer)
    };
    let (seen, changes, layer) = run("on-disk", "disk:256m");
    let (seen_too, changes_too, layer_too) = run("in-folder", &place.flag());
    assert_eq!(seen_too, seen);
    assert_eq!(changes_too, changes);
    assert_eq!(layer_too, layer);
    let changes: Vec<_> = changes.lines().collect();
    for expected in [
        "D /srv/hidden",
        "C /srv/kept",
        "A /srv/moved/in/side",
        "C /tmp",
    ] {
        assert!(changes.contains(&expected), "{expected}: {changes:?}");
    }

    assert_whiteout(&place.upper("srv/data"));
    assert_whiteout(&place.upper("srv/hidden"));
    assert_opaque(&place.upper("srv/kept"));
    assert_eq!(
        fs::read_to_string(place.upper("srv/added")).unwrap(),
        "new\n"
    );
    let link = fs::read_link(place.upper("srv/link")).unwrap();
    assert_eq!(link, Path::new("data"));
    let user = rustix::process::geteuid().as_raw();
    for name in ["srv/moved/in/side", "srv/group", "tmp/d", "tmp/d/e/mine"] {
        let meta = fs::symlink_metadata(place.upper(name)).unwrap();
        assert_eq!(meta.uid(), user, "{name}");
        assert_eq!(meta.permissions().mode() & 0o7000, 0, "{name}");
    }
    home.output(&["rm", "on-disk", "in-folder"]).ok();
    assert!(
        place.upper("srv/added").exists(),
        "the folder is the user's"
    );
}

/// What a layer says of a file, but for its times.
pub type Described = (u8, u32, (u64, u64), String, Vec<(String, Vec<u8>)>, Vec<u8>);

/// Returns the members of an image's last layer.
pub fn last_layer(home: &Home, image: &str) -> BTreeMap<String, Described> {
    let path = home.path().join("saved.tar");
    let to = path.to_str().unwrap();
    home.output(&["save", "--compression", "none", "-o", to, image])
        .ok();
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(path).unwrap();
    let manifest = member(&bytes, "manifest.json");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let layers = manifest[0]["Layers"].as_array().unwrap();
    let layer = member(&bytes, layers.last().unwrap().as_str().unwrap());
    let mut archive = tar::Archive::new(Cursor::new(layer));
    let members = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let link = entry.link_name().unwrap();
        let link = link.map_or(String::new(), |link| link.display().to_string());
        let xattrs = entry.pax_extensions().unwrap().map_or(Vec::new(), |all| {
            let all = all.map(Result::unwrap);
            let xattrs = all.filter(|pax| pax.key().unwrap().starts_with("SCHILY.xattr"));
            let pair = xattrs.map(|pax| (pax.key().unwrap().into(), pax.value_bytes().into()));
            pair.collect()
        });
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).unwrap();
        let header = entry.header();
        let owner = (header.uid().unwrap(), header.gid().unwrap());
        let kind = header.entry_type().as_byte();
        let mode = header.mode().unwrap();
        (name, (kind, mode, owner, link, xattrs, contents))
    });
    members.collect()
}

fn member(archive: &[u8], name: &str) -> Vec<u8> {
    let mut archive = tar::Archive::new(archive);
    let mut entries = archive.entries().unwrap().map(Result::unwrap);
    let mut entry = entries
        .find(|entry| entry.path().unwrap() == Path::new(name))
        .unwrap();
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).unwrap();
    bytes
}
