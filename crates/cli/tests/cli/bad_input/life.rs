//! The life of sandboxes: create, start, stop, pause, rename, update, copies.

use std::time::Duration;

use micabox::ErrorKind::{Damaged, InUse, Invalid, NameInUse, NotFound, NotRunning, Unsupported};
use micabox::{Error, Expiry, Resources};

use super::world::{EVIL, World, long};
use super::{Case, case, mica, sdk};

/// The SDK knows it by its ID.
const ABSENT: &str = "no such sandbox: `removed`|no such sandbox";
const RULE: &str = "2 to 63 letters";

fn start(world: &World, name: &str) -> Result<(), Error> {
    world.get(name)?.reload()?.restart()?.create().map(drop)
}

fn update(world: &World, name: &str, resources: Resources) -> Result<(), Error> {
    world.get(name)?.update(&resources)
}

fn memory(mib: u32) -> Resources {
    Resources {
        memory_mib: Some(mib),
        ..Resources::default()
    }
}

fn processors(thousandths: u32) -> Resources {
    Resources {
        processors: Some(thousandths),
        ..Resources::default()
    }
}

fn fork(world: &World, name: &str) -> Result<(), Error> {
    world.get(name)?.ephemeral_snapshot().map(drop)
}

fn commit(world: &World, name: &str) -> Result<(), Error> {
    let (changes, limits) = Default::default();
    world.get(name)?.commit(&changes, &[], &limits).map(drop)
}

fn import(world: &World, name: Option<&str>, file: &str) -> Result<(), Error> {
    let mut file = std::fs::File::open(world.file(file)).unwrap();
    world.sandboxes.import_snapshot(name, &mut file).map(drop)
}

pub const CASES: &[Case] = &[
    case("inspect removed", 1, NotFound, "removed", |world| {
        world.sandboxes.get("removed").map(drop)
    }),
    case("inspect {LONG}", 1, NotFound, "xxx", |world| {
        world.sandboxes.get(&long()).map(drop)
    }),
    case("stop ", 1, NotFound, "no such sandbox: ``", |world| {
        world.sandboxes.get("").map(drop)
    }),
    case("stop {EVIL}", 1, NotFound, "no such sandbox", |world| {
        world.sandboxes.get(EVIL).map(drop)
    }),
    case("stop removed", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.stop(Duration::MAX).map(drop)
    }),
    mica("stop -t -1 it", 2, "'-1' for '--time <SECONDS>'"),
    mica("stop -t 99999999999999999999 it", 2, "too large"),
    mica("stop", 2, "required"),
    case("start removed", 1, NotFound, ABSENT, |world| {
        start(world, "removed")
    }),
    case("start it", 1, InUse, "sandbox it is running", |world| {
        start(world, "it")
    }),
    case(
        "start -a it",
        125,
        InUse,
        "sandbox it is running",
        |world| start(world, "it"),
    ),
    case("start ended", 1, Unsupported, "sandbox ended", |world| {
        start(world, "ended")
    }),
    mica("start -a created stopped", 1, "only one sandbox"),
    case("restart ended", 1, Unsupported, "sandbox ended", |world| {
        start(world, "ended")
    }),
    case("restart removed", 1, NotFound, ABSENT, |world| {
        start(world, "removed")
    }),
    mica("restart paused", 1, "sandbox paused"),
    case("rm it", 1, InUse, "sandbox it is running", |world| {
        world.get("it")?.remove().map(drop)
    }),
    case(
        "rm paused",
        1,
        InUse,
        "sandbox paused is running",
        |world| world.get("paused")?.remove().map(drop),
    ),
    case("rm removed", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.remove().map(drop)
    }),
    case(
        "pause paused",
        1,
        NotRunning,
        "sandbox paused is paused|the sandbox is paused",
        |world| world.get("paused")?.pause(),
    ),
    case(
        "pause stopped",
        1,
        NotRunning,
        "sandbox stopped does not run",
        |world| world.get("stopped")?.pause(),
    ),
    case("pause removed", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.pause()
    }),
    case(
        "unpause it",
        1,
        Invalid,
        "sandbox it is not paused|is not paused",
        |world| world.get("it")?.unpause(),
    ),
    case(
        "unpause ended",
        1,
        NotRunning,
        "sandbox ended does not run",
        |world| world.get("ended")?.unpause(),
    ),
    case("rename it paused", 1, NameInUse, "in use", |world| {
        world.get("it")?.rename("paused")
    }),
    case("rename stopped it", 1, NameInUse, "in use", |world| {
        world.get("stopped")?.rename("it")
    }),
    case("rename it a/b", 1, Invalid, RULE, |world| {
        world.get("it")?.rename("a/b")
    }),
    case("rename it ..", 1, Invalid, RULE, |world| {
        world.get("it")?.rename("..")
    }),
    case("rename stopped {LONG}", 1, Invalid, RULE, |world| {
        world.get("stopped")?.rename(&long())
    }),
    case("rename stopped {EVIL}", 1, Invalid, RULE, |world| {
        world.get("stopped")?.rename(EVIL)
    }),
    case("rename removed other", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.rename("other")
    }),
    case(
        "update -m 1g it",
        1,
        InUse,
        "sandbox it runs|sandbox it is running",
        |world| update(world, "it", memory(1024)),
    ),
    case(
        "update --cpus 64 it",
        1,
        InUse,
        "can't have more|sandbox it is running",
        |world| update(world, "it", processors(64_000)),
    ),
    case(
        "update --pids-limit 9 paused",
        1,
        InUse,
        "sandbox paused runs|sandbox paused is running",
        |world| {
            let resources = Resources {
                pids_limit: Some(9),
                ..Resources::default()
            };
            update(world, "paused", resources)
        },
    ),
    case("update -m 1m stopped", 2, Invalid, "64m|64 MiB", |world| {
        update(world, "stopped", memory(1))
    }),
    case(
        "update --cpus 0.001 stopped",
        2,
        Invalid,
        "0.01 to 64|a hundredth",
        |world| update(world, "stopped", processors(0)),
    ),
    case(
        "update --cpus 65 stopped",
        2,
        Invalid,
        "0.01 to 64|64 virtual processors",
        |world| update(world, "stopped", processors(u32::MAX)),
    ),
    sdk(Invalid, "no command would run", |world| {
        let resources = Resources {
            pids_limit: Some(0),
            ..Resources::default()
        };
        update(world, "stopped", resources)
    }),
    case(
        "update --net-rate 1m created",
        1,
        Invalid,
        "sandbox created can't be changed: it has no network",
        |world| {
            let resources = Resources {
                net_rate: Some(Default::default()),
                ..Resources::default()
            };
            update(world, "created", resources)
        },
    ),
    case(
        "update --net-rate 1m paused",
        1,
        Invalid,
        "sandbox paused can't be changed: it has no network",
        |world| {
            let resources = Resources {
                net_rate: Some(Default::default()),
                ..Resources::default()
            };
            update(world, "paused", resources)
        },
    ),
    case(
        "update -m 1g ended",
        1,
        Unsupported,
        "sandbox ended",
        |world| update(world, "ended", memory(1024)),
    ),
    case("update -m 1g removed", 1, NotFound, ABSENT, |world| {
        update(world, "removed", memory(1024))
    }),
    case(
        "update --max-life 1h ended",
        1,
        NotRunning,
        "sandbox ended does not run",
        |world| {
            let expiry = Expiry {
                idle_timeout: None,
                max_life: Some(Duration::MAX),
            };
            world.get("ended")?.expire(&expiry).map(drop)
        },
    ),
    mica("update it", 2, "required"),
    mica("update --max-life never it", 2, "number"),
    mica("update --disk-rate fast stopped", 2, "number"),
    case(
        "stats --no-stream stopped",
        1,
        NotRunning,
        "sandbox stopped does not run",
        |world| world.get("stopped")?.stats().map(drop),
    ),
    case("stats --no-stream removed", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.stats().map(drop)
    }),
    mica("events --since yesterday --until 0s", 2, "yesterday"),
    mica("events -f colour=red --until 0s", 2, "colour"),
    mica("ps -f colour=red", 1, "colour"),
    mica("ps --format {{.Colour}}", 1, "Colour"),
    mica("port it 80", 1, "not published"),
    mica("port it 99999", 2, "99999"),
    mica("port stopped", 1, "does not run"),
    mica("port removed", 1, ABSENT),
    case("fork it", 125, Unsupported, "need KVM", |world| {
        fork(world, "it")
    }),
    case(
        "fork stopped",
        125,
        NotRunning,
        "sandbox stopped does not run",
        |world| fork(world, "stopped"),
    ),
    case("fork removed", 125, NotFound, ABSENT, |world| {
        fork(world, "removed")
    }),
    mica("fork -n 0 it", 2, "0 is not in"),
    mica("fork -n 65536 it", 2, "65536 is not in"),
    case(
        "snapshot create --memory it other",
        1,
        Unsupported,
        "need KVM",
        |world| world.get("it")?.snapshot_with_memory("other").map(drop),
    ),
    case(
        "snapshot create --memory stopped other",
        1,
        NotRunning,
        "sandbox stopped does not run",
        |world| {
            world
                .get("stopped")?
                .snapshot_with_memory("other")
                .map(drop)
        },
    ),
    case(
        "snapshot create it shot",
        1,
        NameInUse,
        "there is one already",
        |world| world.get("it")?.snapshot("shot").map(drop),
    ),
    case("snapshot create it a", 1, Invalid, RULE, |world| {
        world.get("it")?.snapshot("a").map(drop)
    }),
    case("snapshot create it ../../x", 1, Invalid, RULE, |world| {
        world.get("it")?.snapshot("../../x").map(drop)
    }),
    case(
        "snapshot create ended other",
        1,
        Unsupported,
        "sandbox ended",
        |world| world.get("ended")?.snapshot("other").map(drop),
    ),
    case(
        "snapshot create removed other",
        1,
        NotFound,
        ABSENT,
        |world| world.get("removed")?.snapshot("other").map(drop),
    ),
    case(
        "snapshot rm absent",
        1,
        NotFound,
        "no such snapshot: `absent`",
        |world| world.sandboxes.remove_snapshot("absent"),
    ),
    case(
        "snapshot rm ../it",
        1,
        NotFound,
        "no such snapshot",
        |world| world.sandboxes.remove_snapshot("../it"),
    ),
    case(
        "snapshot export absent {DIR}/out",
        1,
        NotFound,
        "no such snapshot: `absent`",
        |world| world.sandboxes.export_snapshot("absent", &mut Vec::new()),
    ),
    mica("snapshot export shot {DIR}/no/such/out", 1, "No such file"),
    case(
        "snapshot import {DIR}/garbage",
        1,
        Damaged,
        "not a mica snapshot",
        |world| import(world, None, "garbage"),
    ),
    case(
        "snapshot import {DIR}/shot",
        1,
        NameInUse,
        "there is one already",
        |world| import(world, None, "shot"),
    ),
    case("snapshot import {DIR}/shot a", 1, Invalid, RULE, |world| {
        import(world, Some("a"), "shot")
    }),
    mica("snapshot import {DIR}/absent", 1, "No such file"),
    case(
        "run --from absent",
        125,
        NotFound,
        "no such snapshot: `absent`",
        |world| world.sandboxes.snapshot("absent").map(drop),
    ),
    case(
        "commit ended other:1",
        1,
        Unsupported,
        "sandbox ended",
        |world| commit(world, "ended"),
    ),
    case("commit removed other:1", 1, NotFound, ABSENT, |world| {
        commit(world, "removed")
    }),
    mica("commit it UPPER:::", 1, "UPPER"),
];
