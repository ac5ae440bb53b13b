//! Commands in sandboxes: exec, attach, kill, wait, top.

use micabox::ErrorKind::{Invalid, NotFound, NotRunning};
use micabox::{Command, ExecOptions, Overrides};

use super::world::{World, args, long};
use super::{Case, case, mica, sdk};

fn user(name: &str) -> Overrides {
    Overrides {
        user: Some(name.into()),
        ..args(&["true"])
    }
}

fn workdir(path: &str) -> Overrides {
    Overrides {
        workdir: Some(path.into()),
        ..args(&["true"])
    }
}

fn attach(world: &World, name: &str) -> Result<(), micabox::Error> {
    world.get(name)?.attach(ExecOptions::default()).map(drop)
}

fn variable(name: &str, value: &str) -> Command {
    Command {
        env: vec![(name.into(), value.into())],
        ..Command::new(["true"])
    }
}

/// The SDK knows it by its ID.
const ABSENT: &str = "no such sandbox: `removed`|no such sandbox";
const LONG_NAME: &str = "file name too long";

pub const CASES: &[Case] = &[
    case("exec it ", 125, Invalid, "empty name", |world| {
        world.exec("it", &args(&[""]))
    }),
    case(
        "exec it",
        125,
        Invalid,
        "no command to run|no command",
        |world| world.exec("it", &args(&[])),
    ),
    case(
        "exec -u ghost it true",
        125,
        Invalid,
        "user ghost is not in the image's /etc/passwd",
        |world| world.exec("it", &user("ghost")),
    ),
    case(
        "exec -u 0:99999999999 it true",
        125,
        Invalid,
        "group ID 99999999999 is too large",
        |world| world.exec("it", &user("0:99999999999")),
    ),
    case(
        "exec -u {LONG} it true",
        125,
        Invalid,
        "user xxx",
        |world| world.exec("it", &user(&long())),
    ),
    case(
        "exec -u {EVIL} it true",
        125,
        Invalid,
        "is not in the image's /etc/passwd",
        |world| world.exec("it", &user(super::world::EVIL)),
    ),
    case(
        "exec -w relative it true",
        125,
        Invalid,
        "is not an absolute path",
        |world| world.exec("it", &workdir("relative")),
    ),
    case(
        "exec -w /etc/passwd it true",
        125,
        Invalid,
        "working directory /etc/passwd",
        |world| world.exec("it", &workdir("/etc/passwd")),
    ),
    case(
        "exec -w /{LONG} it true",
        125,
        Invalid,
        LONG_NAME,
        |world| world.exec("it", &workdir(&format!("/{}", long()))),
    ),
    case(
        "exec it no-such-program",
        127,
        NotFound,
        "no-such-program",
        |world| world.exec("it", &args(&["no-such-program"])),
    ),
    case("exec it /srv", 126, Invalid, "/srv", |world| {
        world.exec("it", &args(&["/srv"]))
    }),
    case("exec it {LONG}", 127, NotFound, "xxx", |world| {
        world.exec("it", &args(&[&long()]))
    }),
    case("exec it /{LONG}", 126, Invalid, LONG_NAME, |world| {
        world.exec("it", &args(&[&format!("/{}", long())]))
    }),
    case(
        "exec --env-file {DIR}/variables it true",
        125,
        Invalid,
        "arguments and environment are too long",
        |world| world.run(&variable("A", &"\u{1}".repeat(5 << 20))),
    ),
    // What Linux's lists of arguments and variables can't hold.
    sdk(Invalid, "NUL", |world| {
        world.run(&Command::new(["echo", "a\0b"]))
    }),
    sdk(Invalid, "NUL", |world| world.run(&variable("A", "a\0b"))),
    sdk(Invalid, "NUL", |world| world.exec("it", &workdir("/a\0b"))),
    sdk(Invalid, "is not in the image", |world| {
        world.exec("it", &user("a\0b"))
    }),
    sdk(Invalid, "variable", |world| world.run(&variable("", "x"))),
    sdk(Invalid, "variable", |world| {
        world.run(&variable("A=B", "x"))
    }),
    mica("exec --timeout soon it true", 125, "number"),
    mica("exec --detach-keys ctrl-1 it true", 125, "not a key"),
    mica("exec --env =x it true", 125, "no variable name"),
    mica(
        "exec --env-file {DIR}/absent it true",
        125,
        "absent: No such file",
    ),
    case(
        "exec paused true",
        125,
        NotRunning,
        "the sandbox is paused",
        |world| world.exec("paused", &args(&["true"])),
    ),
    case(
        "exec created true",
        125,
        NotRunning,
        "sandbox created does not run",
        |world| world.exec("created", &args(&["true"])),
    ),
    case(
        "exec stopped true",
        125,
        NotRunning,
        "sandbox stopped does not run",
        |world| world.exec("stopped", &args(&["true"])),
    ),
    case(
        "exec ended true",
        125,
        NotRunning,
        "sandbox ended does not run",
        |world| world.exec("ended", &args(&["true"])),
    ),
    case("exec removed true", 125, NotFound, ABSENT, |world| {
        world.exec("removed", &args(&["true"]))
    }),
    case(
        "exec {LONG} true",
        125,
        NotFound,
        "no such sandbox: `xxx",
        |world| world.exec(&long(), &args(&["true"])),
    ),
    case(
        "attach it",
        125,
        Invalid,
        "sandbox it has no command|no command",
        |world| attach(world, "it"),
    ),
    case(
        "attach created",
        125,
        NotRunning,
        "sandbox created does not run",
        |world| attach(world, "created"),
    ),
    case(
        "attach ended",
        125,
        NotRunning,
        "sandbox ended does not run",
        |world| attach(world, "ended"),
    ),
    case("attach removed", 125, NotFound, ABSENT, |world| {
        attach(world, "removed")
    }),
    case(
        "kill it",
        1,
        Invalid,
        "`mica stop it` ends it|no command",
        |world| world.get("it")?.signal(9),
    ),
    case("kill -s 65 it", 2, Invalid, "no such signal", |world| {
        world.get("it")?.signal(65)
    }),
    case("kill -s 0 paused", 2, Invalid, "no such signal", |world| {
        world.get("paused")?.signal(0)
    }),
    case(
        "kill -s -1 paused",
        2,
        Invalid,
        "invalid value '-1' for '--signal|no such signal",
        |world| world.get("paused")?.signal(i32::MIN),
    ),
    mica("kill -s {LONG} it", 2, "no such signal"),
    case(
        "kill ended",
        1,
        NotRunning,
        "sandbox ended does not run",
        |world| world.get("ended")?.signal(9),
    ),
    case("kill removed", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.signal(9)
    }),
    case(
        "wait created",
        1,
        NotRunning,
        "sandbox created does not run",
        |world| world.get("created")?.wait().map(drop),
    ),
    case("wait removed", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.wait().map(drop)
    }),
    case(
        "top paused",
        1,
        NotRunning,
        "the sandbox is paused",
        |world| world.get("paused")?.processes().map(drop),
    ),
    case(
        "top stopped",
        1,
        NotRunning,
        "sandbox stopped does not run",
        |world| world.get("stopped")?.processes().map(drop),
    ),
    case("top removed", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.processes().map(drop)
    }),
    mica("top it -o pid,colour", 1, "colour"),
    mica("logs ended", 1, "has no log"),
    case("logs removed", 1, NotFound, ABSENT, |world| {
        world.get("removed")?.reload()?.log().map(drop)
    }),
];
