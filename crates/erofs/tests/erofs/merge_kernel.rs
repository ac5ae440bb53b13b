//! Checks the merge against the machine's overlayfs: fsmeta, over one device per layer and over one
//! flat device, must look like the stacked layers with the fixup on top.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use micabox_erofs::merge::{Layer, Merge, Written};
use micabox_erofs::{Concat, Reader, Summary};
use micabox_testing::mounts::{Mount, directory_on_disk};
use micabox_testing::run;

use crate::support::snapshot::{self, Ignore, assert_same};
use crate::support::spec::{
    self, Entry, What, directory, entry, file, hard_link, implied, link_to_lower, meta, symlink,
    whiteout,
};
use crate::support::{model, random, tools};

/// 2 MiB, as for published images.
const ALIGNMENT: u32 = 512;

const STACKED: Ignore = Ignore {
    merged_directory_nlink: true,
    overlay_markers: false,
};

/// Image files of a stack.
struct Images {
    directory: tempfile::TempDir,
    layers: Vec<PathBuf>,
    merge: Merge,
}

impl Images {
    fn of(layers: &[Vec<Entry>]) -> Self {
        let directory = directory_on_disk();
        let paths: Vec<PathBuf> = layers
            .iter()
            .enumerate()
            .map(|(number, entries)| {
                let path = directory.path().join(format!("layer{number}"));
                let out = File::create_new(&path).unwrap();
                spec::write(out, [number as u8 + 1; 16], entries);
                tools::fsck(&path, &[]);
                path
            })
            .collect();
        let files: Vec<File> = paths.iter().map(|p| File::open(p).unwrap()).collect();
        let inputs: Vec<Layer<'_, File>> = files
            .iter()
            .map(|image| Layer {
                image,
                tag: b"some layer",
            })
            .collect();
        let merge = Merge::of(&inputs, ALIGNMENT).unwrap();
        Self {
            directory,
            layers: paths,
            merge,
        }
    }

    fn devices(&self) -> Vec<&Path> {
        self.layers.iter().map(PathBuf::as_path).collect()
    }

    /// Writes fsmeta or the fixup and returns its path and a flat file with everything.
    fn write(&self, fixup: bool) -> (PathBuf, PathBuf) {
        let name = if fixup { "fixup" } else { "fsmeta" };
        let path = self.directory.path().join(name);
        let out = File::create_new(&path).unwrap();
        let (_, written) = if fixup {
            self.merge.write_fixup(out, [0xf1; 16]).unwrap()
        } else {
            self.merge.write_fsmeta(out, [0xf0; 16]).unwrap()
        };
        let flat = self.directory.path().join(format!("{name}.flat"));
        self.concatenate(&path, &written, &flat);
        (path, flat)
    }

    /// Writes an image that needs no devices, and returns its path.
    fn whole(
        &self,
        name: &str,
        write: impl FnOnce(
            &Merge,
            &Concat<File>,
            File,
            [u8; 16],
        ) -> micabox_erofs::Result<(File, Summary)>,
    ) -> PathBuf {
        let layers = self.layers.iter().map(|path| File::open(path).unwrap());
        let contents = Concat::new(layers, u64::from(ALIGNMENT) * 4096).unwrap();
        let path = self.directory.path().join(name);
        let out = File::create_new(&path).unwrap();
        let (out, summary) = write(&self.merge, &contents, out, [0xf2; 16]).unwrap();
        out.set_len(u64::from(summary.blocks) * 4096).unwrap();
        tools::fsck(&path, &[]);
        path
    }

    fn concatenate(&self, meta: &Path, written: &Written, flat: &Path) {
        let out = File::create_new(flat).unwrap();
        out.write_all_at(&std::fs::read(meta).unwrap(), 0).unwrap();
        let mut end = u64::from(written.padded_blocks);
        for (layer, device) in self.layers.iter().zip(&written.devices) {
            assert_eq!(u64::from(device.first_block), end);
            end += u64::from(device.blocks);
            let at = u64::from(device.first_block) * 4096;
            out.write_all_at(&std::fs::read(layer).unwrap(), at)
                .unwrap();
        }
        out.set_len(end * 4096).unwrap();
    }
}

fn check(layers: &[Vec<Entry>]) {
    let images = Images::of(layers);
    let expected = model::view(layers);

    let (fsmeta, flat) = images.write(false);
    // erofs-utils 1.5 requires a device per slot, but finds plain inodes in the image only.
    tools::fsck(&flat, &images.devices());
    let by_device = Mount::erofs(&fsmeta, &images.devices());
    let merged = snapshot::of_directory(by_device.path());
    assert_same("fsmeta with device=", &merged, &expected, Ignore::default());
    let by_flat = Mount::erofs(&flat, &[]);
    let merged = snapshot::of_directory(by_flat.path());
    assert_same("fsmeta flat", &merged, &expected, Ignore::default());
    let reader = Reader::open(File::open(&flat).unwrap()).unwrap();
    assert_same(
        "fsmeta by our reader",
        &snapshot::of_image(&reader),
        &expected,
        Ignore::default(),
    );

    // The guest's view of each: through overlayfs, which decodes the escaped names.
    let over_fsmeta = Mount::stack(slice::from_ref(&by_flat));
    let merged = snapshot::of_directory(over_fsmeta.path());
    let mut lowers: Vec<Mount> = images.layers[images.merge.first_layer()..]
        .iter()
        .rev()
        .map(|layer| Mount::erofs(layer, &[]))
        .collect();
    if images.merge.needs_fixup() {
        let (fixup, flat) = images.write(true);
        tools::fsck(&flat, &images.devices());
        let by_device = Mount::erofs(&fixup, &images.devices());
        let fixup = snapshot::of_directory(by_device.path());
        lowers.insert(0, Mount::erofs(&flat, &[]));
        let flat = snapshot::of_directory(lowers[0].path());
        assert_same("fixup", &fixup, &flat, Ignore::default());
    }
    let over_stack = Mount::stack(&lowers);
    let stacked = snapshot::of_directory(over_stack.path());
    assert_same("fsmeta and stack", &merged, &stacked, STACKED);
    drop(over_stack);

    // Images that need no devices: all of it in one, and a stack with the contents of its fixup.
    let whole = images.whole("whole", Merge::write_whole);
    let by_whole = Mount::erofs(&whole, &[]);
    let whole = snapshot::of_directory(by_whole.path());
    assert_same("whole image", &whole, &expected, Ignore::default());
    if images.merge.needs_fixup() {
        lowers[0] = Mount::erofs(&images.whole("whole fixup", Merge::write_whole_fixup), &[]);
    }
    let bottom = Images::of(&layers[images.merge.first_layer()..][..1]);
    let bottom = Mount::erofs(&bottom.whole("bottom", Merge::write_whole), &[]);
    let markers = |path: &Path| {
        let script = "getfattr -R -h -m '^trusted.overlay.[^.]*$' .; \
                      find . -type c -exec stat -c '%t:%T %n' {} + | sed -n '/^0:0 /p'";
        run(Command::new("sh").args(["-c", script]).current_dir(path))
    };
    assert_eq!(markers(bottom.path()), "");
    *lowers.last_mut().unwrap() = bottom;
    let over_stack = Mount::stack(&lowers);
    let stacked = snapshot::of_directory(over_stack.path());
    assert_same("fsmeta and whole stack", &merged, &stacked, STACKED);
}

#[test]
#[ignore = "needs root"]
fn whiteouts_and_opaque_directories_merge_as_the_kernel_has_it() {
    let bottom = vec![
        directory("/").mode(0o711),
        directory("/etc").owner(3, 4),
        file("/etc/a", "lower a"),
        file("/etc/b", "lower b"),
        directory("/gone"),
        file("/gone/x", "x"),
        directory("/opaque").mode(0o700),
        file("/opaque/old", "old"),
        directory("/opaque/sub"),
        file("/opaque/sub/old", "old"),
        file("/becomes a directory", "file"),
        directory("/becomes a file"),
        file("/becomes a file/x", "x"),
        symlink("/link", "etc"),
    ];
    let top = vec![
        directory("/etc").mode(0o751).xattr("user.top", "1"),
        whiteout("/etc/a"),
        file("/etc/c", "upper c"),
        whiteout("/etc/never was"),
        whiteout("/gone"),
        directory("/opaque").opaque(),
        file("/opaque/new", "new"),
        // A whiteout next to the opaque marker, and one for a name in this layer.
        whiteout("/opaque/whiteout"),
        directory("/opaque/sub"),
        directory("/becomes a directory"),
        file("/becomes a directory/x", "x"),
        file("/becomes a file", "file"),
        directory("/link"),
        file("/link/inside", "i"),
        directory("/only here"),
        whiteout("/only here/whiteout"),
    ];
    let last = vec![
        directory("/gone"),
        file("/gone/y", "back again"),
        directory("/opaque"),
        file("/opaque/newest", "newest"),
    ];
    check(&[bottom, top, last]);
}

#[test]
#[ignore = "needs root"]
fn names_that_sort_below_a_dot_merge() {
    let names = ["+page.svelte", "(group)", "$x", "-x", "#x", "!", ".", "z"];
    let with = |suffix: &str| {
        let mut entries = vec![directory("/"), directory("/routes")];
        for name in names {
            entries.push(file(format!("/routes/{name}{suffix}"), suffix));
            entries.push(file(format!("/routes/{name} in both"), suffix));
        }
        entries
    };
    check(&[with(" lower"), with(" upper")]);
}

#[test]
#[ignore = "needs root"]
fn hard_links_across_layers_merge() {
    let bottom = vec![
        directory("/"),
        directory("/usr").mode(0o750).owner(7, 8).mtime(5, 6),
        directory("/usr/bin"),
        file("/usr/bin/perl", vec![b'p'; 10_000]).xattr("user.lower", "kept"),
        hard_link("/usr/bin/perl5", "/usr/bin/perl"),
        symlink("/bin", "usr/bin"),
        symlink("/target", "usr"),
        entry("/fifo", meta(0o600), What::Fifo),
        file("/doomed", "doomed"),
        file("/empty", ""),
    ];
    let top = vec![
        implied("/opt"),
        link_to_lower("/opt/perl", "/usr/bin/perl").xattr("user.upper", "added"),
        link_to_lower("/another", "/usr/bin/perl"),
        link_to_lower("/fifo too", "/fifo"),
        link_to_lower("/symlink too", "/target"),
        link_to_lower("/empty too", "/empty"),
        // The same layer removes the target.
        link_to_lower("/survivor", "/doomed"),
        whiteout("/doomed"),
        // A second name of the link within its layer.
        hard_link("/survivor too", "/survivor"),
    ];
    let last = vec![
        link_to_lower("/usual", "/another"),
        implied("/opt"),
        whiteout("/opt/perl"),
        file("/empty", "not any more"),
    ];
    check(&[bottom, top, last]);
}

#[test]
#[ignore = "needs root"]
fn implied_directories_merge() {
    let bottom = vec![
        directory("/").mode(0o700).mtime(-9, 9),
        directory("/a")
            .mode(0o1777)
            .owner(1, 1)
            .xattr("user.a", "a"),
        directory("/a/b").mode(0o500),
        file("/a/b/x", "x"),
        file("/file", "a file that becomes a directory"),
        directory("/plain").mtime(0, 0),
    ];
    let middle = vec![
        implied("/"),
        implied("/a"),
        implied("/a/b"),
        file("/a/b/y", "y"),
        implied("/file"),
        file("/file/inside", "i"),
        implied("/plain"),
        file("/plain/x", "x"),
        implied("/new"),
        file("/new/x", "x"),
    ];
    let top = vec![
        implied("/"),
        implied("/a").opaque(),
        file("/a/z", "z"),
        directory("/new").mode(0o555),
    ];
    check(&[bottom, middle, top]);
}

#[test]
#[ignore = "needs root"]
fn an_opaque_root_hides_all_layers_below() {
    let bottom = vec![directory("/").mode(0o700), file("/old", "old")];
    let link = vec![link_to_lower("/link", "/old")];
    let top = vec![implied("/").opaque(), file("/new", "new")];
    let images = Images::of(&[bottom.clone(), link.clone(), top.clone()]);
    assert_eq!(images.merge.first_layer(), 2);
    check(&[bottom, link, top, vec![file("/newer", "newer")]]);
}

#[test]
#[ignore = "needs root"]
fn sparse_large_and_linked_files_merge() {
    let sparse = |size, at| {
        let parts = vec![(at, vec![b's'; 5000])];
        What::File(spec::Content::Sparse(size, parts))
    };
    let bottom = vec![
        entry("/sparse", meta(0o644), sparse(10 << 20, 3 << 20)),
        file("/large", vec![b'l'; 3_000_000]),
        hard_link("/large too", "/large"),
        file("/escaped", "").xattr("trusted.overlay.overlay.opaque", "y"),
    ];
    let top = vec![
        entry("/sparse too", meta(0o644), sparse(100 << 20, 50 << 20)),
        hard_link("/sparse link", "/sparse too"),
        whiteout("/large too"),
        file("/capable", "elf").xattr(
            "security.capability",
            [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
    ];
    check(&[bottom, top]);
}

#[test]
#[ignore = "needs root"]
fn more_layers_than_a_block_has_device_slots_merge() {
    let layers: Vec<_> = (0..40)
        .map(|i| {
            vec![
                directory("/"),
                directory("/d"),
                file(format!("/d/{i}"), [i; 100]),
                file("/last", [i]),
            ]
        })
        .collect();
    check(&layers);
}

#[test]
#[ignore = "needs root"]
fn random_stacks_merge_as_the_kernel_has_it() {
    for number in 0..60 {
        check(&random::numbered(number, 5));
    }
}
