//! The headings in `mica run --help`: those of a sandbox's options are with them, and those of the other flags are here.

use clap::Arg;
use micabox_spec::options::{Heading, find};

/// The other flags, each with its heading and its place below.
const OTHERS: [(&str, Heading, u16); 12] = [
    ("interactive", Heading::Command, 10),
    ("tty", Heading::Command, 20),
    ("detach", Heading::Command, 30),
    ("attach", Heading::Command, 40),
    ("sig-proxy", Heading::Command, 50),
    ("detach-keys", Heading::Command, 60),
    ("idle", Heading::Command, 70),
    ("timeout", Heading::Command, 80),
    ("stop-timeout", Heading::Command, 90),
    ("entrypoint", Heading::Command, 110),
    ("cidfile", Heading::Sandbox, 40),
    ("timing", Heading::Sandbox, 140),
];

/// Puts a flag below its heading.
pub fn grouped(flag: Arg) -> Arg {
    match flag.get_long().and_then(place) {
        Some((heading, place)) => {
            let order = heading as usize * (1 << 16) + usize::from(place);
            flag.help_heading(heading.title()).display_order(order)
        }
        None => flag,
    }
}

fn place(name: &str) -> Option<(Heading, u16)> {
    let mut others = OTHERS.into_iter();
    match others.find(|(other, ..)| *other == name) {
        Some((_, heading, place)) => Some((heading, place)),
        None => find(name)?.below,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: super::super::Args,
    }

    #[test]
    fn every_flag_has_a_group() {
        let command = Cli::command();
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let name = flag.get_long().filter(|name| *name != "help");
            assert!(
                name.is_none() || flag.get_help_heading().is_some(),
                "{name:?}"
            );
        }
        for (name, heading, place) in super::OTHERS {
            let mut all = command.get_arguments();
            assert!(all.any(|flag| flag.get_long() == Some(name)), "{name}");
            let mut options = micabox_spec::options::all();
            assert!(options.all(|option| option.below != Some((heading, place))));
        }
    }
}
