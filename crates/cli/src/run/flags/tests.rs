use std::ffi::OsString;

use clap::Parser;

use super::*;
use crate::flags;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn parse(words: &[&str]) -> Result<Args, clap::Error> {
    let words = std::iter::once("run").chain(words.iter().copied());
    Cli::try_parse_from(words).map(|cli| cli.args)
}

fn with_booleans(words: &[&str]) -> Result<Args, clap::Error> {
    let words = std::iter::once("run").chain(words.iter().copied());
    flags::parse::<Cli>(words.map(OsString::from)).map(|cli| cli.args)
}

#[test]
fn flags_end_at_the_image() {
    let args = parse(&["-it", "--rm", "alpine", "ls", "--rm", "-l", "--", "x"]).unwrap();
    assert!(args.command.interactive && args.command.tty && args.sandbox.life.rm);
    assert_eq!(args.image().unwrap(), Some("alpine"));
    assert_eq!(args.argv(), ["ls", "--rm", "-l", "--", "x"]);
    assert_eq!(parse(&["alpine", "--rm"]).unwrap().argv(), ["--rm"]);
    assert!(parse(&["--bogus", "alpine"]).is_err());
    assert!(parse(&["-it"]).is_err());
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
fn a_flag_may_say_that_it_is_on_or_off() {
    for (words, wanted) in [
        (&["-it"][..], [true, true]),
        (&["-i=true", "-t=false"], [true, false]),
        (&["--tty=false", "--interactive=1"], [true, false]),
        (&["-it", "--tty=F"], [true, false]),
        (&["--tty=TRUE", "-i"], [true, true]),
        (&["-it", "-it"], [true, true]),
        (&[], [false, false]),
    ] {
        let args =
            with_booleans(&[words, &["--read-only=false", "box", "--tty=x"]].concat()).unwrap();
        assert_eq!([args.command.interactive, args.command.tty], wanted);
        assert!(!args.sandbox.files.read_only);
        assert_eq!(args.argv(), ["--tty=x"]);
    }
    // A value may begin with a hyphen, but what is a flag of ours is one.
    let args = with_booleans(&["--name", "-x", "-e", "-y=1", "-it", "box", "-t"]).unwrap();
    assert_eq!(args.sandbox.life.name.as_deref(), Some("-x"));
    assert!(args.command.tty && args.sandbox.commands.env == ["-y=1"]);
    for words in [&["--name", "--rm", "box"][..], &["--bogus", "box"]] {
        with_booleans(words).unwrap_err();
    }
    let error = with_booleans(&["--tty=perhaps", "box"])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("'perhaps'") && error.contains("--tty"),
        "{error}"
    );
}
