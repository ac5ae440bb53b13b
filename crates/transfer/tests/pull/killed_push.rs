//! kill -9 at any moment while an image is converted and pushed in both forms: what its registry has of it then is all of
//! it or nothing, and the store is as it was.

use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use micabox_image::Store;
use micabox_image::export::convert_image;
use micabox_image::progress::Silent;
use micabox_image::store::PruneOptions;
use micabox_testing::{kills, wait_until};
use micabox_transfer::{Credentials, PushOptions, push_blocking};

use crate::erofs::{Converted, puller, reference};
use crate::lazy::converted;
use crate::{assert_has, settings};

const STORE: &str = "TEST_PUSH_STORE";
const NAME: &str = "TEST_PUSH_NAME";
const TARGET: &str = "TEST_PUSH_TARGET";

/// Converts and pushes in a separate process: this test again, directed by environment variables.
fn pushing(converted: &Converted, target: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "killed_push::a_killed_conversion_or_push_leaves_all_of_an_image_or_nothing",
        ])
        .env(STORE, converted.pusher.puller.store.root())
        .env(NAME, &converted.pusher.name)
        .env(TARGET, target)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn push(root: &Path, name: &str, target: &str) {
    let store = Store::open(root).unwrap();
    // What `mica convert IMAGE` does, and with a target.
    convert_image(&store, &store.image(name).unwrap(), &Silent).unwrap();
    let mut options = PushOptions::new(Arc::new(settings()));
    (options.erofs, options.credentials) = (true, Credentials::none());
    let target = target.parse().unwrap();
    push_blocking(&store, name, Some(&target), &options, Arc::new(Silent)).unwrap();
}

#[test]
fn a_killed_conversion_or_push_leaves_all_of_an_image_or_nothing() {
    if let (Some(root), Ok(name), Ok(target)) =
        (env::var_os(STORE), env::var(NAME), env::var(TARGET))
    {
        push(Path::new(&root), &name, &target);
        return;
    }
    let converted = converted();
    let published = converted.pushed.erofs.as_ref().unwrap().manifest_digest;
    let store = &converted.pusher.puller.store;
    let name = |repository: usize| reference(&converted.registry, &format!("again-{repository}:1"));
    let started = Instant::now();
    let first = pushing(&converted, &name(0).to_string()).wait().unwrap();
    assert!(first.success());
    let mut lasts = started.elapsed();

    // A different moment each time, by the golden ratio: spread evenly, never the same.
    let (mut moment, mut done, kills) = (0.0f64, 0, kills(20));
    for round in 1..=kills {
        moment = (moment + 0.618_033_988_75).fract();
        let target = name(round);
        let started = Instant::now();
        let mut process = pushing(&converted, &target.to_string());
        // Sleep: the kill may come at any moment.
        std::thread::sleep(lasts.mul_f64(moment));
        process.kill().unwrap();
        if process.wait().unwrap().success() {
            done += 1;
            lasts = lasts.min(started.elapsed());
        }
        let report = store.fsck(false).unwrap();
        assert_eq!(report.findings, [], "round {round}");
        assert_eq!(report.strangers, [] as [&Path; 0], "round {round}");

        // The tag comes last: with it, everything is there.
        let other = puller();
        match other.try_pull(&target) {
            Ok(image) => assert_eq!(image.manifest_digest, published, "round {round}"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("no such image"), "round {round}: {said}");
            }
        }
        // A worker of the killed process may hold its files a moment longer.
        wait_until("nothing is left behind", || {
            store.prune(&PruneOptions::default()).unwrap();
            store.fsck(false).unwrap().leftovers == 0
        });
    }
    println!("kills: {kills} of push, {done} of them when it was done");
    assert!(done < kills, "it was never killed in time");
    // Once more, to its end, where the last one was killed.
    let target = name(kills);
    assert!(
        pushing(&converted, &target.to_string())
            .wait()
            .unwrap()
            .success()
    );
    let image = puller().pull(&target);
    assert_eq!(image.manifest_digest, published);
    let stored = store.image(&converted.pusher.name).unwrap();
    assert_has(store, &stored, &converted.pusher.image);
}
