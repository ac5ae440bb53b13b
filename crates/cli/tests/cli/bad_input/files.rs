//! Files of sandboxes: `Files`, `mica cp`, `mica diff`.

use std::io::Read;

use micabox::ErrorKind::{Full, Invalid, NameInUse, NotFound, NotRunning, Unsupported};
use micabox::{Attributes, Error, Existing, Files, WriteOptions};

use super::world::{World, long};
use super::{Case, case, mica, sdk};

fn files(world: &World) -> Result<Files, Error> {
    Ok(world.get("it")?.files())
}

fn archive(world: &World, name: &str, path: &str) -> Result<(), Error> {
    let mut archive = world
        .get(name)?
        .read_archive(path.as_bytes(), false, b"x")?;
    // The end has the reason.
    let _ = archive.read_to_end(&mut Vec::new());
    archive.finish().map(drop)
}

fn unpack(world: &World, name: &str, to: &str, from: &str) -> Result<(), Error> {
    let file = std::fs::File::open(world.file(from)).unwrap();
    world
        .get(name)?
        .write_archive(to.as_bytes(), file.into())
        .map(drop)
}

const NO_FILE: &str = "No such file or directory";

pub const CASES: &[Case] = &[
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.read("/absent").map(drop)
    }),
    sdk(Invalid, "Is a directory", |world| {
        files(world)?.read("").map(drop)
    }),
    sdk(Invalid, "Is a directory", |world| {
        files(world)?.read("/srv").map(drop)
    }),
    sdk(Invalid, "Not a directory", |world| {
        files(world)?.read("/etc/passwd/x").map(drop)
    }),
    sdk(Invalid, "File name too long", |world| {
        files(world)?.read(long()).map(drop)
    }),
    sdk(Invalid, "Invalid argument", |world| {
        files(world)?.read("/a\0b").map(drop)
    }),
    sdk(Invalid, "Invalid argument", |world| {
        files(world)?
            .open_range("/etc/passwd", u64::MAX, None)
            .map(drop)
    }),
    sdk(Invalid, "user ghost", |world| {
        files(world)?.as_user("ghost").read("/etc/passwd").map(drop)
    }),
    sdk(Invalid, "ermission denied", |world| {
        files(world)?.as_user("app").read("/root/x").map(drop)
    }),
    sdk(Invalid, "too large", |world| {
        files(world)?.read("/dev/zero").map(drop)
    }),
    sdk(Invalid, "Is a directory", |world| {
        files(world)?.write("/srv", b"x")
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.write("/no/such/x", b"x")
    }),
    sdk(Full, "No space left", |world| {
        files(world)?.write("/dev/full", b"x")
    }),
    sdk(NameInUse, "File exists", |world| {
        let options = WriteOptions {
            existing: Existing::Refuse,
            ..WriteOptions::default()
        };
        files(world)?.write_with("/etc/passwd", b"x", options)
    }),
    sdk(Invalid, "Invalid argument", |world| {
        let options = WriteOptions {
            existing: Existing::At(u64::MAX),
            ..WriteOptions::default()
        };
        files(world)?.write_with("/etc/passwd", b"x", options)
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.stat("/absent").map(drop)
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.stat_link("/absent").map(drop)
    }),
    sdk(Invalid, "Not a directory", |world| {
        first(files(world)?.list("/etc/passwd", 1)?)
    }),
    sdk(NotFound, NO_FILE, |world| {
        first(files(world)?.list("/absent", u32::MAX)?)
    }),
    sdk(NameInUse, "File exists", |world| {
        files(world)?.make_directory("/srv", false)
    }),
    sdk(NameInUse, "File exists", |world| {
        files(world)?.make_directory("/", false)
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.make_directory("/no/such/x", false)
    }),
    sdk(Invalid, "Not a directory", |world| {
        files(world)?.make_directory("/etc/passwd/x", true)
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.remove("/absent", true)
    }),
    sdk(Invalid, "not empty", |world| {
        files(world)?.remove("/srv", false)
    }),
    sdk(Invalid, "busy", |world| files(world)?.remove("/", true)),
    sdk(Invalid, "busy", |world| {
        files(world)?.remove("/proc", false)
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.rename("/absent", "/x", true)
    }),
    sdk(NameInUse, "File exists", |world| {
        files(world)?.rename("/srv/run", "/etc/passwd", false)
    }),
    sdk(Invalid, "Invalid argument", |world| {
        files(world)?.rename("/srv", "/srv/kept/x", true)
    }),
    sdk(Invalid, "cross-device", |world| {
        files(world)?.rename("/srv/run", "/dev/shm/x", true)
    }),
    sdk(NameInUse, "File exists", |world| {
        files(world)?.symlink("x", "/srv")
    }),
    sdk(NotFound, NO_FILE, |world| files(world)?.symlink("", "/x")),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.hard_link("/absent", "/x")
    }),
    sdk(Invalid, "not permitted", |world| {
        files(world)?.hard_link("/srv", "/x")
    }),
    sdk(Invalid, "Invalid argument", |world| {
        files(world)?.read_link("/etc/passwd").map(drop)
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.read_link("/absent").map(drop)
    }),
    sdk(Invalid, "Invalid argument", |world| {
        files(world)?.set_owner("/srv", u32::MAX, 0)
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.set_mode("/absent", 0o7777)
    }),
    sdk(Invalid, "not supported", |world| {
        let attributes = Attributes {
            of_link: true,
            mode: Some(0o777),
            ..Attributes::default()
        };
        files(world)?.set("/bin/sh", attributes)
    }),
    sdk(NotFound, NO_FILE, |world| {
        files(world)?.watch("/absent", true).map(drop)
    }),
    sdk(NotRunning, "paused", |world| {
        world.get("paused")?.files().read("/etc/passwd").map(drop)
    }),
    sdk(NotRunning, "does not run", |world| {
        world.get("stopped")?.files().stat("/etc").map(drop)
    }),
    sdk(NotRunning, "does not run", |world| {
        world.get("removed")?.files().write("/x", b"")
    }),
    case("cp it:/absent {DIR}/out", 1, NotFound, NO_FILE, |world| {
        archive(world, "it", "/absent")
    }),
    case(
        "cp stopped:/absent {DIR}/out",
        1,
        NotFound,
        "absent",
        |world| archive(world, "stopped", "/absent"),
    ),
    case(
        "cp ended:/etc {DIR}/out",
        1,
        Unsupported,
        "sandbox ended",
        |world| archive(world, "ended", "/etc"),
    ),
    case(
        "cp removed:/etc {DIR}/out",
        1,
        NotFound,
        "no such sandbox: `removed`|no such sandbox",
        |world| archive(world, "removed", "/etc"),
    ),
    case(
        "cp paused:/etc {DIR}/out",
        1,
        NotRunning,
        "paused",
        |world| archive(world, "paused", "/etc"),
    ),
    case(
        "cp it:/{LONG} {DIR}/out",
        1,
        Invalid,
        "File name too long",
        |world| archive(world, "it", &format!("/{}", long())),
    ),
    sdk(Invalid, "", |world| {
        unpack(world, "it", "/srv/new", "garbage")
    }),
    sdk(Invalid, "", |world| {
        unpack(world, "stopped", "/srv/new", "garbage")
    }),
    sdk(Invalid, "Not a directory", |world| {
        unpack(world, "it", "/etc/passwd", "garbage")
    }),
    mica("cp {DIR}/absent it:/srv", 1, "absent: No such file"),
    mica("cp {DIR}/garbage it:/no/such/place/", 1, "no/such/place"),
    mica("cp {DIR}/garbage it:/etc/passwd/x", 1, "Not a directory"),
    mica("cp here there", 1, "one path must be in a sandbox"),
    mica(
        "cp it:/etc stopped:/etc",
        1,
        "one path must be in a sandbox",
    ),
    case("diff ended", 1, Unsupported, "sandbox ended", |world| {
        world.get("ended")?.diff(|_| Ok(())).map(drop)
    }),
    case(
        "diff removed",
        1,
        NotFound,
        "no such sandbox: `removed`|no such sandbox",
        |world| world.get("removed")?.diff(|_| Ok(())).map(drop),
    ),
];

/// Returns the first error of a listing.
fn first(mut entries: micabox::Entries) -> Result<(), Error> {
    entries.find_map(Result::err).map_or(Ok(()), Err)
}
