//! Compares the kernel's ext4 with this crate on the same images, in both directions.

use micabox_ext4::{Errno, Ext4, Options};

use crate::support::engine::{self, Image};
use crate::support::kernel::{Mount, agrees};
use crate::support::model::{self, Model, Op, Random, assert_includes};

/// Whether an operation means the same with paths as with inodes: no symbolic link is on the path,
/// and contents and attributes are a file's.
fn applies(model: &Model, op: &Op) -> bool {
    let paths = match op {
        Op::Create(path)
        | Op::Mkdir(path)
        | Op::Symlink(path, _)
        | Op::Unlink(path)
        | Op::Rmdir(path) => vec![path],
        Op::Link(path, other) | Op::Rename(path, other, _) => vec![path, other],
        Op::Sync => vec![],
        Op::Write { path, .. }
        | Op::Truncate(path, _)
        | Op::Allocate(path, ..)
        | Op::Punch(path, ..)
        | Op::Zero(path, ..)
        | Op::Chmod(path, _)
        | Op::SetXattr(path, ..)
        | Op::RemoveXattr(path, _) => {
            return model.is_file(path) && !model.leads_through_link(path);
        }
    };
    !paths.into_iter().any(|path| model.leads_through_link(path))
}

fn our_history(
    filesystem: &mut Ext4<std::fs::File>,
    model: &mut Model,
    random: &mut Random,
    steps: usize,
) {
    for _ in 0..steps {
        let op = Op::random(random);
        let before = model.clone();
        let expected = model.apply(&op);
        let found = model::apply(filesystem, &op);
        if found == Err(Errno::NoSpace) && expected != found {
            *model = before;
            continue;
        }
        assert_eq!(found, expected, "{op:?}");
    }
}

fn kernel_history(mount: &Mount, model: &mut Model, random: &mut Random, steps: usize) {
    for _ in 0..steps {
        let op = Op::random(random);
        if !applies(model, &op) {
            continue;
        }
        let before = model.clone();
        let expected = model.apply(&op);
        let found = mount.apply(&op);
        if found == Err(Errno::NoSpace.number()) {
            *model = before;
            continue;
        }
        // Both of two paths may be wrong; which error is reported first differs.
        let two = matches!(op, Op::Link(..) | Op::Rename(..));
        let same = agrees(found, expected) || (two && found.is_err() && expected.is_err());
        assert!(same, "{op:?}: {found:?}, and the model says {expected:?}");
    }
}

/// Images of shapes that both can write.
fn images() -> Vec<Image> {
    vec![
        Image::new(64 << 20),
        Image::mke2fs(64 << 20, &["-t", "ext4"]),
        Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "1024"]),
        Image::mke2fs(64 << 20, &["-t", "ext4", "-O", "inline_data,ea_inode"]),
        Image::mke2fs(
            64 << 20,
            &["-t", "ext4", "-O", "^metadata_csum,^64bit", "-I", "128"],
        ),
        Image::mke2fs(64 << 20, &["-t", "ext4", "-O", "^has_journal"]),
    ]
}

#[test]
#[ignore = "needs root"]
fn the_engine_and_the_kernel_write_in_turn() {
    for (seed, image) in images().into_iter().enumerate() {
        let mut random = Random(seed as u64);
        let mut model = Model::new();
        for _turn in 0..3 {
            let mut filesystem = image.open();
            our_history(&mut filesystem, &mut model, &mut random, 700);
            filesystem.close().unwrap();
            image.check_with_kernel();
            let mount = Mount::new(&image.path(), "rw");
            let expected = model.unchanged(usize::MAX);
            assert_includes(
                &mount.describe(),
                &expected,
                &format!("{seed}: the kernel after us"),
            );
            kernel_history(&mount, &mut model, &mut random, 700);
            drop(mount);
            image.check_with_kernel();
            let expected = model.unchanged(usize::MAX);
            let found = model::describe(&mut image.open_read_only());
            assert_includes(&found, &expected, &format!("{seed}: we after the kernel"));
        }
    }
}

#[test]
#[ignore = "needs root"]
fn the_kernel_replays_our_journal() {
    for (seed, image) in images().into_iter().take(5).enumerate() {
        let mut random = Random(100 + seed as u64);
        let mut model = Model::new();
        let mut filesystem = image.open();
        for _ in 0..5 {
            our_history(&mut filesystem, &mut model, &mut random, 200);
            filesystem.sync().unwrap();
        }
        drop(filesystem.abandon());
        let mount = Mount::new(&image.path(), "rw");
        let expected = model.unchanged(usize::MAX);
        assert_includes(
            &mount.describe(),
            &expected,
            &format!("{seed}: replayed by the kernel"),
        );
        drop(mount);
        image.check_with_kernel();
    }
}

#[test]
#[ignore = "needs root"]
fn we_replay_the_kernels_journal() {
    for (seed, image) in images().into_iter().take(5).enumerate() {
        let mut random = Random(200 + seed as u64);
        let mut model = Model::new();
        let mount = Mount::new(&image.path(), "rw");
        let cut = image.path().with_extension("cut");
        for round in 0..3 {
            kernel_history(&mount, &mut model, &mut random, 400);
            mount.sync();
            // Not unmounted: the last transactions are only in the journal.
            std::fs::copy(image.path(), &cut).unwrap();
            let when = format!("{seed}, round {round}");
            let open = || {
                std::fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(&cut)
                    .unwrap()
            };
            let expected = model.unchanged(usize::MAX);
            let mut reader = Ext4::open_read_only(open(), Options::default()).unwrap();
            assert_includes(
                &model::describe(&mut reader),
                &expected,
                &format!("{when}: in memory"),
            );
            let mut filesystem = Ext4::open(open(), Options::default()).unwrap();
            assert_includes(
                &model::describe(&mut filesystem),
                &expected,
                &format!("{when}: on disk"),
            );
            let mut later = model.clone();
            our_history(&mut filesystem, &mut later, &mut random.clone(), 300);
            filesystem.close().unwrap();
            engine::check_with_kernel(&cut);
        }
    }
}
