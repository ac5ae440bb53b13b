//! What the store has beside sandboxes: volumes and images.

use micabox::Error;
use micabox::ErrorKind::{InUse, Invalid, NameInUse, NotFound};

use super::world::{EVIL, World, long};
use super::{Case, case, mica};

const NO_VOLUME: &str = "no such volume: `absent`";
const RULE: &str = "2 to 63 letters";

fn volume(world: &World, name: &str, size: u64) -> Result<(), Error> {
    let labels = Default::default();
    world.sandboxes.create_volume(name, size, labels).map(drop)
}

pub const CASES: &[Case] = &[
    case(
        "volume create used",
        1,
        NameInUse,
        "there is one already",
        |world| volume(world, "used", 32 << 20),
    ),
    case("volume create a", 1, Invalid, RULE, |world| {
        volume(world, "a", 32 << 20)
    }),
    case("volume create {LONG}", 1, Invalid, RULE, |world| {
        volume(world, &long(), 32 << 20)
    }),
    case("volume create {EVIL}", 1, Invalid, RULE, |world| {
        volume(world, EVIL, 32 << 20)
    }),
    case(
        "volume create --size 1k tiny",
        1,
        Invalid,
        "volume tiny can't have that size",
        |world| volume(world, "tiny", 1),
    ),
    case(
        "volume create --size 9999999T vast",
        1,
        Invalid,
        "volume vast can't have that size",
        |world| volume(world, "vast", u64::MAX),
    ),
    mica("volume create --size much more", 2, "much"),
    case("volume rm absent", 1, NotFound, NO_VOLUME, |world| {
        world.sandboxes.remove_volume("absent")
    }),
    case("volume rm ..", 1, NotFound, "no such volume", |world| {
        world.sandboxes.remove_volume("..")
    }),
    case(
        "volume rm used",
        1,
        InUse,
        "volume used is in use",
        |world| world.sandboxes.remove_volume("used"),
    ),
    case("volume inspect absent", 1, NotFound, NO_VOLUME, |world| {
        world.sandboxes.volume("absent").map(drop)
    }),
    case("volume resize absent 1G", 1, NotFound, NO_VOLUME, |world| {
        world.sandboxes.resize_volume("absent", 1 << 30).map(drop)
    }),
    case(
        "volume resize free 16M",
        1,
        Invalid,
        "volume free can't have that size",
        |world| world.sandboxes.resize_volume("free", 16 << 20).map(drop),
    ),
    case(
        "volume resize used 64G",
        1,
        InUse,
        "volume used is in use",
        |world| world.sandboxes.resize_volume("used", 64 << 30).map(drop),
    ),
    case("inspect absent", 1, NotFound, "absent", |world| {
        world.store().image("absent").map(drop).map_err(Error::from)
    }),
    case("rmi absent", 1, NotFound, "absent", |world| {
        world
            .store()
            .remove("absent")
            .map(drop)
            .map_err(Error::from)
    }),
    case("rmi box", 1, InUse, "in use", |world| {
        world.store().remove("box").map(drop).map_err(Error::from)
    }),
    mica("tag absent other:1", 1, "absent"),
    mica("tag box UPPER:::", 2, "UPPER"),
    mica("save -o {DIR}/out absent", 1, "absent"),
    mica("save -o {DIR}/no/such/out box", 1, "No such file"),
    mica("load {DIR}/garbage", 1, "garbage"),
    mica("load {DIR}/absent", 1, "absent"),
    mica("push absent registry.invalid/x", 1, "absent"),
    mica("pull UPPER:::", 2, "UPPER"),
    mica("store fsck {LONG}", 2, "unexpected argument"),
    mica("store pack", 2, "IMAGE"),
    mica("store pack absent", 1, "absent"),
    mica("store pack --all box", 2, "cannot be used with"),
    mica("store pack --unused-for 1x", 2, "expected a number"),
    mica("store unpack absent", 1, "absent"),
    mica("store unpack", 2, "IMAGE"),
];
