//! New sandboxes: their machines, mounts, limits and networks.

use micabox::ErrorKind::{InUse, Invalid, NameInUse, NotFound, Unsupported};
use micabox::{Error, Mount, Network, Patch, RootDisk, Tmpfs, Upper, UserNetwork};

use super::world::{World, long};
use super::{Case, case, mica, sdk};

const RULE: &str = "2 to 63 letters";

fn named(world: &World, name: &str) -> Result<(), Error> {
    world.builder().name(name).create_stopped().map(drop)
}

fn mounted(world: &World, mounts: &[Mount]) -> Result<(), Error> {
    world.create(|builder| {
        mounts
            .iter()
            .cloned()
            .fold(builder, |builder, mount| builder.mount(mount))
    })
}

fn tmpfs(target: &str) -> Mount {
    Mount::tmpfs(target, Tmpfs::default())
}

fn upper(world: &World, path: &str) -> Result<(), Error> {
    let path = path.to_owned();
    world.create(|builder| builder.upper(Upper::Folder { path }))
}

fn disk(world: &World, file: &str) -> Result<(), Error> {
    RootDisk::open(&world.file(file), false).map(drop)
}

pub const CASES: &[Case] = &[
    case(
        "run --pull never absent true",
        125,
        NotFound,
        "absent",
        |world| world.store().image("absent").map(drop).map_err(Error::from),
    ),
    case(
        "create --pull never sha256:00 true",
        125,
        NotFound,
        "sha256:00",
        |world| {
            world
                .store()
                .image("sha256:00")
                .map(drop)
                .map_err(Error::from)
        },
    ),
    mica("create --pull never {LONG} true", 125, "xxx"),
    mica("create", 125, "required"),
    case("create --name it box", 125, NameInUse, "in use", |world| {
        named(world, "it")
    }),
    case(
        "run --name stopped box true",
        125,
        NameInUse,
        "in use",
        |world| world.create(|builder| builder.name("stopped")),
    ),
    case("create --name a/b box", 125, Invalid, RULE, |world| {
        named(world, "a/b")
    }),
    case("run --name {LONG} box true", 125, Invalid, RULE, |world| {
        world.create(|builder| builder.name(long()))
    }),
    case("create -l =x box", 125, Invalid, "no name", |world| {
        world.builder().label("", "x").create_stopped().map(drop)
    }),
    case("create -l a={LONG} box", 125, Invalid, "64 KiB", |world| {
        world
            .builder()
            .label("a", long())
            .create_stopped()
            .map(drop)
    }),
    case(
        "run -m 1m box true",
        125,
        Invalid,
        "64m|at least 64",
        |world| world.create(|builder| builder.memory_mib(1)),
    ),
    case(
        "run --cpus 0.001 box true",
        125,
        Invalid,
        "0.01 to 64|1 to 64 virtual processors",
        |world| world.create(|builder| builder.cpus(0)),
    ),
    sdk(Invalid, "1 to 64 virtual processors", |world| {
        world.create(|builder| builder.cpus(255))
    }),
    sdk(Invalid, "a hundredth of a processor", |world| {
        world.create(|builder| builder.cpu_quota(1))
    }),
    case(
        "run --hostname bad! box true",
        125,
        Invalid,
        "expected up to 64 letters|up to 64 letters",
        |world| world.create(|builder| builder.hostname("bad!")),
    ),
    sdk(Invalid, "host name", |world| {
        world.create(|builder| builder.hostname(long()))
    }),
    sdk(Invalid, "host name", |world| {
        world.create(|builder| builder.hostname("a\nb"))
    }),
    case(
        "run --upper disk:1k box true",
        125,
        Invalid,
        "disk",
        |world| world.create(|builder| builder.upper(Upper::Disk { size: 1 })),
    ),
    sdk(Invalid, "disk", |world| {
        world.create(|builder| builder.upper(Upper::Disk { size: u64::MAX }))
    }),
    case(
        "run --upper folder:/proc/none/folder box true",
        125,
        NotFound,
        "`/proc/none/folder`",
        |world| upper(world, "/proc/none/folder"),
    ),
    case(
        "run --upper folder:/etc box true",
        125,
        Invalid,
        "is not a sandbox's",
        |world| upper(world, "/etc"),
    ),
    case(
        "run --upper folder:{DIR}/garbage box true",
        125,
        Invalid,
        "Not a directory",
        |world| upper(world, world.file("garbage").to_str().unwrap_or_default()),
    ),
    case(
        "run --mkdir /a --upper folder:{DIR}/changes box true",
        125,
        Unsupported,
        "changes before the start",
        |world| {
            let patches = vec![Patch::Directory(b"/a".to_vec())];
            let path = world.file("changes").display().to_string();
            world.create(|builder| builder.upper(Upper::Folder { path }).patches(patches))
        },
    ),
    mica("run --upper folder: box true", 125, "folder:DIR"),
    sdk(Invalid, "not absolute", |world| upper(world, "relative")),
    sdk(Invalid, "NUL byte", |world| upper(world, "/a\0b")),
    case(
        "run --tmpfs relative box true",
        125,
        Invalid,
        "relative",
        |world| mounted(world, &[tmpfs("relative")]),
    ),
    case(
        "run --tmpfs /a/../.. box true",
        125,
        Invalid,
        "`..`",
        |world| mounted(world, &[tmpfs("/a/../..")]),
    ),
    case("run --tmpfs / box true", 125, Invalid, "`/`", |world| {
        mounted(world, &[tmpfs("/")])
    }),
    case(
        "run --tmpfs /{LONG} box true",
        125,
        Invalid,
        "long",
        |world| mounted(world, &[tmpfs(&format!("/{}", long()))]),
    ),
    case(
        "run --tmpfs /a --tmpfs /a/ box true",
        125,
        Invalid,
        "mounted there as well",
        |world| mounted(world, &[tmpfs("/a"), tmpfs("/a/")]),
    ),
    case(
        "run -v used:/data box true",
        125,
        InUse,
        "volume used is in use",
        |world| mounted(world, &[Mount::volume("used", "/data")]),
    ),
    case(
        "run -v a:/data box true",
        125,
        Invalid,
        "invalid volume name `a`",
        |world| mounted(world, &[Mount::volume("a", "/data")]),
    ),
    case("run -v free:data box true", 125, Invalid, "data", |world| {
        mounted(world, &[Mount::volume("free", "data")])
    }),
    case(
        "run --mount type=bind,src=/proc/none,dst=/x box true",
        125,
        NotFound,
        "cannot share `/proc/none`",
        |world| mounted(world, &[Mount::bind("/proc/none", "/x")]),
    ),
    sdk(Invalid, "not absolute", |world| {
        mounted(world, &[Mount::bind("relative", "/x")])
    }),
    mica(
        "run --mount type=image,source=absent,target=/x box true",
        125,
        "absent",
    ),
    case(
        "run --trim docs --root stacked box true",
        125,
        Invalid,
        "a stack of layers can't be trimmed",
        |world| {
            let builder = world.builder().root(micabox::Root::Stacked);
            builder
                .trim(&"docs".parse().unwrap())?
                .create_stopped()
                .map(drop)
        },
    ),
    mica("run --trim usr/share/doc box true", 125, "absolute path"),
    mica("run --trim /a/../b box true", 125, "`..`"),
    mica("run --trim / box true", 125, "root"),
    mica("run --trim docs,/{LONG} box true", 125, "xxx"),
    mica("run --trim docs --from absent", 125, "--trim"),
    mica(
        "run --trim docs --root-disk {DIR}/garbage true",
        125,
        "--trim",
    ),
    mica("run --mount type=colour,target=/x box true", 125, "colour"),
    mica("run -v {LONG} box true", 125, "xxx"),
    case("run -p {PORT}:80 box true", 125, InUse, "in use", |world| {
        let network = UserNetwork {
            publish: vec![format!("{}:80", world.port()).parse().unwrap()],
            ..UserNetwork::default()
        };
        world.create(|builder| builder.network(Network::User(network)))
    }),
    mica("run -p 99999:80 box true", 125, "99999"),
    mica("run --net-allow http://a.test box true", 125, "not a URL"),
    mica("run --ulimit nofile=-2 box true", 125, "expected a number"),
    mica("run --cap-add FLY box true", 125, "no such capability"),
    mica("run --env-file {DIR}/absent box true", 125, "No such file"),
    mica("run --idle box true", 125, "-d"),
    mica("run --colour box true", 125, "--colour"),
    case(
        "run --root-disk {DIR}/garbage true",
        125,
        Unsupported,
        "neither an ext4 nor an EROFS",
        |world| disk(world, "garbage"),
    ),
    case(
        "run --root-disk {DIR}/absent true",
        125,
        NotFound,
        "No such file",
        |world| disk(world, "absent"),
    ),
    case(
        "pool -n 1 --backend qemu box",
        125,
        Unsupported,
        "need KVM",
        |world| {
            let builder = world.builder().backend_choice(micabox::BackendChoice::Qemu);
            builder.pool(1).map(drop)
        },
    ),
    mica("pool -n 0 box", 2, "0"),
    mica("pool --pull never absent", 125, "absent"),
];
