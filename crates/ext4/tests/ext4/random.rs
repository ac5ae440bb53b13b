//! Compares random histories with a model in memory.

use micabox_ext4::mkfs::Journal;
use micabox_ext4::{Errno, Ext4, Options};

use crate::support::engine::Image;
use crate::support::model::{self, Model, Op, Random};
use micabox_testing::e2fsprogs;

/// Returns options with caches so small that entries are evicted all the time.
fn cramped() -> Options {
    Options {
        page_cache: 512 << 10,
        block_cache: 64 << 10,
        inode_cache: 16,
        name_cache: 16,
        ..Options::default()
    }
}

fn history(image: &Image, seed: u64, steps: usize, options: &Options) {
    let mut random = Random(seed);
    let mut model = Model::new();
    let mut filesystem = Ext4::open(image.device(), options.clone()).unwrap();
    for step in 0..steps {
        let op = Op::random(&mut random);
        let before = model.clone();
        let expected = model.apply(&op);
        let found = model::apply(&mut filesystem, &op);
        if found == Err(Errno::NoSpace) && expected != found {
            model = before;
            continue;
        }
        assert_eq!(found, expected, "seed {seed}, step {step}: {op:?}");
        if random.below(200) == 0 {
            // Closing must not lose anything that is only in memory.
            filesystem.close().unwrap();
            filesystem = Ext4::open(image.device(), options.clone()).unwrap();
        }
        if random.below(150) == 0 {
            let when = format!("seed {seed}, step {step}");
            assert_eq!(model::shape(&mut filesystem), model.shape(), "{when}");
        }
    }
    let all = model.unchanged(usize::MAX);
    model::assert_includes(
        &model::describe(&mut filesystem),
        &all,
        &format!("seed {seed}"),
    );
    filesystem.close().unwrap();
    image.check();
    let mut filesystem = image.open_read_only();
    assert_eq!(
        model::shape(&mut filesystem),
        model.shape(),
        "seed {seed}, read again"
    );
    model::assert_includes(
        &model::describe(&mut filesystem),
        &all,
        &format!("seed {seed}, read again"),
    );
}

#[test]
fn histories_agree_with_the_model() {
    for seed in 0..12 {
        history(&Image::new(64 << 20), seed, 2000, &Options::default());
    }
}

#[test]
fn histories_in_little_memory_and_space_agree_with_the_model() {
    for seed in 100..112 {
        history(&Image::new(12 << 20), seed, 2000, &cramped());
    }
}

#[test]
fn histories_without_a_journal_agree_with_the_model() {
    for seed in 200..206 {
        history(
            &Image::with_journal(24 << 20, Journal::None),
            seed,
            2000,
            &cramped(),
        );
    }
}

#[test]
fn histories_on_filesystems_of_mke2fs_agree_with_the_model() {
    for (seed, shape) in [
        ["-t", "ext4", "-b", "1024"].as_slice(),
        &["-t", "ext4", "-O", "inline_data"],
        &["-t", "ext4", "-O", "ea_inode,^flex_bg"],
        &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
        &[
            "-t",
            "ext4",
            "-b",
            "2048",
            "-I",
            "128",
            "-O",
            "uninit_bg,^metadata_csum",
        ],
    ]
    .iter()
    .enumerate()
    {
        history(
            &Image::mke2fs(48 << 20, shape),
            300 + seed as u64,
            2000,
            &cramped(),
        );
    }
}

#[test]
fn e2fsck_replays_our_journal() {
    for seed in 400..404 {
        let image = Image::new(64 << 20);
        let mut random = Random(seed);
        let mut model = Model::new();
        let mut filesystem = image.open();
        for step in 0..600 {
            let op = if step % 40 == 39 {
                Op::Sync
            } else {
                Op::random(&mut random)
            };
            assert_eq!(
                model::apply(&mut filesystem, &op),
                model.apply(&op),
                "{op:?}"
            );
        }
        filesystem.sync().unwrap();
        drop(filesystem.abandon());
        let said = e2fsprogs::tool("e2fsck")
            .arg("-fy")
            .arg(image.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(!said.contains("? yes") && !said.contains("Fix"), "{said}");
        image.check();
        let all = model.unchanged(usize::MAX);
        let found = model::describe(&mut image.open_read_only());
        model::assert_includes(&found, &all, &format!("seed {seed}"));
    }
}
