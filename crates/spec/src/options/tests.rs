use clap::{ArgAction, CommandFactory, Parser};
use serde_json::{Value, json};

use super::{Given, Heading, Kind, OptionError, SandboxOptions, all, exclusions, listed};
use crate::words::OrDefault;
use crate::{Expiry, Network, Spec};

/// A command line with these flags and an image.
#[derive(Debug, Parser)]
pub(super) struct Line {
    #[command(flatten)]
    pub(super) sandbox: SandboxOptions,
    _image: String,
}

pub(super) fn parse(words: &[&str]) -> Result<Line, clap::Error> {
    let words = std::iter::once("run").chain(words.iter().copied());
    Line::try_parse_from(words)
}

#[test]
fn rm_takes_no_path() {
    let is_forgotten = |flag| parse(&[flag, "alpine"]).map(|args| args.sandbox.life.rm);
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
    assert_eq!(sandbox.files.shm_size, Some(OrDefault(None)));
    assert_eq!(sandbox.machine.memory_and_swap(), None);
    for wrong in [["-m", "-0.5"], ["--cpus", "-1"], ["--shm-size", "0x"]] {
        parse(&[&wrong[..], &["alpine"]].concat()).unwrap_err();
    }
}

#[test]
fn without_a_network_defaults_about_one_are_nothing_and_wishes_are_refused() {
    let image = ["80/tcp".to_owned()];
    let words = [
        "-P",
        "--expose",
        "70",
        "-p",
        "8080:80",
        "--dns",
        "192.0.2.1",
    ];
    let defaults = parse(&[&words[..], &["box"]].concat()).unwrap().sandbox;
    for exposed in [&image[..], &[]] {
        assert!(matches!(defaults.network(exposed), Ok(Network::User(_))));
        let mut without = defaults.clone();
        without.take_network();
        assert_eq!(without.network(exposed), Ok(Network::None));
        let mut spec = Spec::default();
        without.apply(exposed, &mut spec).unwrap();
        assert_eq!(spec.network, Network::None);
        // Whatever the image exposes.
        for wish in [&["-P"][..], &["-p", "80"], &["-P", "--expose", "70"]] {
            let words = [wish, &["--net", "none", "box"]].concat();
            let options = parse(&words).unwrap().sandbox;
            options.network(exposed).unwrap_err();
        }
    }
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

#[derive(Parser)]
#[command(disable_help_flag = true)]
struct Flags {
    #[command(flatten)]
    sandbox: SandboxOptions,
}

/// Reads the options of a request for a sandbox from an image.
fn of(options: &Value) -> Result<SandboxOptions, OptionError> {
    let mut given = Given::new(options.as_object().unwrap())?;
    let read = SandboxOptions::read(&mut given)?;
    exclusions::check(&given.end()?, true)?;
    Ok(read)
}

#[test]
fn options_say_what_flags_say() {
    for (words, options) in [
        (
            &[][..],
            json!({"name": null, "volume": [], "read-only": false}),
        ),
        (
            &["--memory=2g", "--cpus=1.5"],
            json!({"memory": "2g", "cpus": 1.5}),
        ),
        (
            &["--memory=0", "--hostname="],
            json!({"memory": 0, "hostname": ""}),
        ),
        (&["--memory-swap=-1"], json!({"memory_swap": -1})),
        (
            &["--net=none", "--backend=host"],
            json!({"network": "none", "backend": "host"}),
        ),
        (&["--net=bridge"], json!({"net": "bridge"})),
        (
            &["--env=A=b", "--env=C=1", "--label=x"],
            json!({"env": {"A": "b", "C": 1}, "label": "x"}),
        ),
        (
            &["--volume=v:/a", "--volume=/h:/b:ro", "--tmpfs=/t:size=1m"],
            json!({"volume": ["v:/a", "/h:/b:ro"], "tmpfs": "/t:size=1m"}),
        ),
        (
            &[
                "--mount=type=image,source=a,target=/b",
                "--patch=a:/b",
                "--symlink=a:/b",
            ],
            json!({"mount": ["type=image,source=a,target=/b"], "patch": "a:/b", "symlink": "a:/b"}),
        ),
        (
            &["--upper=disk:1g", "--rm"],
            json!({"upper": "disk:1g", "rm": true}),
        ),
        (
            &["--trim=docs,man", "--trim=/x"],
            json!({"trim": ["docs,man", "/x"]}),
        ),
        (
            &[
                "--net-allow=10.0.0.0/8",
                "--dns=192.0.2.1",
                "--publish=80-81:80-81/udp",
            ],
            json!({"net_allow=10.0.0.0/8": true, "dns": "192.0.2.1", "publish": "80-81:80-81/udp"}),
        ),
        (
            &[
                "--disk-rate=read=1m,iops=9",
                "--net-rate=1m",
                "--pids-limit=-1",
            ],
            json!({"disk-rate": "read=1m,iops=9", "net_rate": "1m", "pids-limit": -1}),
        ),
        (
            &[
                "--ulimit=nofile=5",
                "--cap-drop=ALL",
                "--security-opt=no-new-privileges",
            ],
            json!({"ulimit": {"nofile": 5}, "cap-drop": "ALL", "security-opt": ["no-new-privileges"]}),
        ),
        (
            &[
                "--idle-timeout=1h",
                "--stop-signal=INT",
                "--platform=linux/amd64",
                "--pull=never",
            ],
            json!({"idle-timeout": "1h", "stop-signal": "INT", "platform": "linux/amd64", "pull": "never"}),
        ),
        (
            &[
                "--init=false",
                "--lazy",
                "--vsock=/s",
                "--user=1",
                "--workdir=/w",
            ],
            json!({"init": false, "lazy": true, "vsock": "/s", "user": 1, "workdir": "/w"}),
        ),
    ] {
        let flags = Flags::try_parse_from(["run"].iter().chain(words)).unwrap();
        let read = of(&options).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", flags.sandbox));
    }
}

#[test]
fn every_flag_is_an_option() {
    for flag in Flags::command().get_arguments() {
        let name = flag.get_long().unwrap();
        // A value that says something to few; a name is not among what is wrong with the others.
        let refused = of(&json!({name: "true", "no-such": "true"})).unwrap_err();
        assert_ne!(refused, OptionError::Unknown(name.to_owned()));
    }
}

#[test]
fn what_is_off_is_off_also_if_it_is_on_by_default() {
    let sandbox = |options: Value| of(&options).unwrap();
    let off = sandbox(json!({"init": false, "lazy": false, "rm": false, "read_only": false}));
    assert!(!off.machine.init && off.machine.lazy == Some(false));
    assert!(!off.life.rm && !off.files.read_only);
    // Elsewhere it says nothing.
    let nothing =
        sandbox(json!({"hostname": false, "env": false, "memory": false, "label": false}));
    assert!(
        nothing.life.hostname.is_none()
            && nothing.commands.env.is_empty()
            && nothing.life.label.is_empty()
    );
    let on = sandbox(json!({"init": true, "lazy": true, "rm": true, "read_only": true}));
    assert!(on.machine.init && on.machine.lazy == Some(true));
    assert!(on.life.rm && on.files.read_only);
}

#[test]
fn the_options_of_sdks_are_the_flags_of_sandboxes() {
    let command = Flags::command();
    let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
    let mut flags: Vec<_> = flags.filter_map(|flag| flag.get_long()).collect();
    // Nothing is printed that it could silence.
    flags.retain(|flag| *flag != "quiet");
    let mut options: Vec<_> = listed().into_iter().map(|option| option.name).collect();
    options.sort_unstable();
    flags.sort_unstable();
    assert_eq!(options, flags);
    for option in listed() {
        assert!(option.help.contains("Default: "), "{}", option.name);
        let takes_values = |flag: &clap::Arg| flag.get_action().takes_values();
        let flag = command
            .get_arguments()
            .find(|flag| flag.get_long() == Some(option.name));
        let flag = flag.unwrap();
        match option.kind {
            Kind::Flag => {
                let can_be_said_alone = flag
                    .get_num_args()
                    .is_none_or(|count| count.min_values() == 0);
                assert!(!takes_values(flag) || can_be_said_alone, "{}", option.name);
            }
            Kind::OneOf(words) => {
                let values = flag.get_possible_values();
                let values: Vec<_> = values.iter().map(|value| value.get_name()).collect();
                assert_eq!(words, values, "{}", option.name);
            }
            Kind::List | Kind::Map => {
                assert!(
                    matches!(flag.get_action(), ArgAction::Append),
                    "{}",
                    option.name
                );
            }
            Kind::Text | Kind::Count | Kind::Number => {
                assert!(
                    matches!(flag.get_action(), ArgAction::Set),
                    "{}",
                    option.name
                );
            }
        }
    }
}

#[test]
fn every_flag_has_a_row_and_every_row_a_flag() {
    let command = Flags::command();
    for flag in command.get_arguments() {
        let name = flag.get_long().unwrap();
        let row = super::find(name).unwrap_or_else(|| panic!("{name} has no row"));
        assert_eq!(row.below.is_none(), flag.is_hide_set(), "{name}");
    }
    for row in all() {
        let mut flags = command.get_arguments();
        assert!(
            flags.any(|flag| flag.get_long() == Some(row.name)),
            "{}",
            row.name
        );
    }
}

#[test]
fn what_no_option_says_stays_as_it_is() {
    let settings = Spec {
        auto_remove: false,
        hostname: Some("as-it-was".to_owned()),
        cold: true,
        network: Network::None,
        ..Spec::default()
    };
    let mut spec = settings.clone();
    SandboxOptions::default().apply(&[], &mut spec).unwrap();
    assert_eq!(spec, settings);
    let options = json!({"hostname": "new", "cpus": 1.5, "idle-timeout": 0, "max-life": "1h", "net": "user",
        "publish": "80:80", "pids-limit": -1, "init": false});
    of(&options).unwrap().apply(&[], &mut spec).unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("new"));
    assert_eq!(
        (spec.machine.cpus, spec.machine.cpu_quota),
        (Some(2), Some(1500))
    );
    let hour = Expiry {
        max_life: Some(std::time::Duration::from_secs(3600)),
        ..Expiry::default()
    };
    assert_eq!((spec.expiry, spec.setup.pids_limit), (hour, None));
    assert_eq!(spec.network.published().len(), 1);
    assert_eq!(spec.init, micabox_wire::Init::FirstExec);
}

#[test]
fn headings_are_in_the_order_in_which_flags_have_them() {
    let command = Flags::command();
    let names = command.get_arguments().filter_map(clap::Arg::get_long);
    let mut seen = Vec::new();
    for (heading, _) in names.filter_map(|name| super::find(name)?.below) {
        // That of `mica run` has flags of its own first.
        if heading != Heading::Command && !seen.contains(&heading) {
            seen.push(heading);
        }
    }
    let places = seen.iter().map(|heading| *heading as u16);
    assert!(places.is_sorted(), "{seen:?}");
    assert_eq!(seen.len(), 5);
}
