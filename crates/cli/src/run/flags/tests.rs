use clap::Parser;
use micabox::{Network, Patch, Upper};

use super::upper::upper;
use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

pub(super) fn parse(words: &[&str]) -> Result<Args, clap::Error> {
    let words = std::iter::once("run").chain(words.iter().copied());
    Cli::try_parse_from(words).map(|cli| cli.args)
}

#[test]
fn flags_end_at_the_image() {
    let args = parse(&["-it", "--rm", "alpine", "ls", "--rm", "-l", "--", "x"]).unwrap();
    assert!(args.command.interactive && args.command.tty && args.sandbox.is_forgotten());
    assert_eq!(args.image().unwrap(), Some("alpine"));
    assert_eq!(args.argv(), ["ls", "--rm", "-l", "--", "x"]);
    assert_eq!(parse(&["alpine", "--rm"]).unwrap().argv(), ["--rm"]);
    assert!(parse(&["--bogus", "alpine"]).is_err());
    assert!(parse(&["-it"]).is_err());
}

#[test]
fn patches_come_in_a_fixed_order() {
    let args = parse(&[
        "--symlink",
        "../a:/b",
        "--remove",
        "/etc/motd",
        "--patch",
        "x:y:/z",
        "--rm",
        "--mkdir",
        "/d",
        "alpine",
    ]);
    let args = args.unwrap();
    assert!(args.sandbox.is_forgotten());
    assert_eq!(
        args.sandbox.patches().unwrap(),
        [
            Patch::Remove(b"/etc/motd".to_vec()),
            Patch::Directory(b"/d".to_vec()),
            Patch::File {
                from: "x:y".into(),
                to: b"/z".to_vec()
            },
            Patch::Symlink {
                target: b"../a".to_vec(),
                path: b"/b".to_vec()
            },
        ]
    );
    let args = parse(&["--remove=relative", "alpine"]).unwrap();
    assert!(!args.sandbox.is_forgotten());
    assert!(args.sandbox.patches().is_err());
    assert!(parse(&["--patch", "x:y", "alpine"]).is_err());
}

#[test]
fn rm_takes_no_path() {
    let is_forgotten = |flag| parse(&[flag, "alpine"]).map(|args| args.sandbox.is_forgotten());
    assert!(is_forgotten("--rm").unwrap());
    assert!(is_forgotten("--rm=true").unwrap());
    assert!(!is_forgotten("--rm=false").unwrap());
    let refusal = is_forgotten("--rm=/etc/motd").unwrap_err().to_string();
    assert!(refusal.contains("use `--remove /etc/motd`"), "{refusal}");
}

#[test]
fn init_is_on_unless_switched_off() {
    assert!(parse(&["alpine"]).unwrap().sandbox.machine.init);
    assert!(parse(&["--init", "alpine"]).unwrap().sandbox.machine.init);
    assert!(
        !parse(&["--init=false", "alpine"])
            .unwrap()
            .sandbox
            .machine
            .init
    );
}

#[test]
fn timing_takes_a_format_only_after_an_equals_sign() {
    let args = parse(&["--timing", "json"]).unwrap();
    assert!(matches!(args.command.timing, Some(Timing::Text)));
    assert_eq!(args.image().unwrap(), Some("json"));
    let args = parse(&["--timing=json", "alpine"]).unwrap();
    assert!(matches!(args.command.timing, Some(Timing::Json)));
}

#[test]
fn zero_is_the_default_as_in_docker() {
    let words = [
        "-m",
        "0",
        "--cpus",
        "0.0",
        "--shm-size=0b",
        "--memory-swap",
        "0",
        "alpine",
    ];
    let sandbox = parse(&words).unwrap().sandbox;
    assert_eq!(sandbox.machine.memory(), None);
    assert!(sandbox.machine.cpus().is_none());
    assert_eq!(sandbox.shm_size.flatten(), None);
    sandbox.machine.check_memory().unwrap();
    for wrong in [["-m", "-0.5"], ["--cpus", "-1"], ["--shm-size", "0x"]] {
        parse(&[&wrong[..], &["alpine"]].concat()).unwrap_err();
    }
}

#[test]
fn a_disk_has_a_size() {
    let disk = |size| Ok(Upper::Disk { size });
    assert_eq!(upper("tmpfs"), Ok(Upper::Tmpfs));
    assert_eq!(upper("disk"), disk(8 << 30));
    assert_eq!(upper("disk:16m"), disk(16 << 20));
    assert_eq!(upper("disk:1.5T"), disk(3 << 39));
    for bad in [
        "", "disk:", "disk:1m", "disk:17t", "tmpfs:1g", "folder", "folder:", "x",
    ] {
        upper(bad).unwrap_err();
    }
}

#[test]
fn a_folder_has_an_absolute_path() {
    let folder = |path: &str| {
        let path = path.to_owned();
        Ok(Upper::Folder { path })
    };
    assert_eq!(upper("folder:/a/b:c"), folder("/a/b:c"));
    let here = std::env::current_dir().unwrap();
    let below = here.join("a").into_os_string().into_string().unwrap();
    assert_eq!(upper("folder:a"), folder(&below));
}

#[test]
fn network_flags_need_a_network() {
    let network = |words: &[&str]| {
        parse(&[words, &["image"]].concat())
            .unwrap()
            .sandbox
            .network(&[])
    };
    assert_eq!(network(&[]).unwrap(), Network::default());
    assert_eq!(network(&["--network", "none"]).unwrap(), Network::None);
    for default in ["bridge", "default", ""] {
        assert_eq!(
            network(&["--network", default]).unwrap(),
            Network::default()
        );
    }
    let words = [
        "-p",
        "80:80",
        "-p",
        "53:53/udp",
        "--net-allow",
        "*.a.example:443",
        "--net-deny",
        "10.0.0.0/8",
        "--dns",
        "192.0.2.1",
        "--dns",
        "[::1]:5353",
    ];
    let Network::User(user) = network(&words).unwrap() else {
        panic!("there is one");
    };
    assert_eq!(user.publish.len(), 2);
    assert_eq!(user.allow[0].to_string(), "*.a.example:443");
    assert_eq!(user.deny[0].to_string(), "10.0.0.0/8");
    let resolvers = user.resolvers.iter().map(ToString::to_string);
    assert_eq!(
        resolvers.collect::<Vec<_>>(),
        ["192.0.2.1:53", "[::1]:5353"]
    );
    network(&["--net", "none", "-p", "80:80"]).unwrap_err();
    for bad in [["-p", "x"], ["--net-allow", "http://x"], ["--dns", "x"]] {
        assert!(parse(&[&bad[..], &["image"]].concat()).is_err(), "{bad:?}");
    }
}
