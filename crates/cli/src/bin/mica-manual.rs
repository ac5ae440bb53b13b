//! The program `mica-manual`, which is not shipped: writes man pages and completions of `mica`.
//!
//!     mica-manual DIRECTORY
//!     mica-manual --markdown DIRECTORY
//!     mica-manual --protocol DIRECTORY
//!
//! Below the directory, files have the places that Debian gives them below `/usr/share`. With `--markdown` there is a
//! page for each command in it, for the site, and with `--protocol` the schema of the protocol's messages, as a file
//! and as a page.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use clap_complete::Shell;

/// For each shell, the directory of completions, and the name of those of `mica`.
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "mica"),
    (Shell::Zsh, "zsh/vendor-completions", "_mica"),
    (Shell::Fish, "fish/vendor_completions.d", "mica.fish"),
];

fn main() -> io::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let directory = match arguments.as_slice() {
        [_, flag, directory] if flag == "--markdown" => {
            let mut definition = micabox_cli::definition();
            definition.build();
            return pages(&definition, Path::new(directory), "README.md");
        }
        [_, flag, directory] if flag == "--protocol" => return protocol(Path::new(directory)),
        [_, directory] => PathBuf::from(directory),
        _ => {
            return Err(io::Error::other(
                "usage: mica-manual [--markdown|--protocol] DIRECTORY",
            ));
        }
    };
    for (shell, place, name) in COMPLETIONS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut micabox_cli::definition(), "mica", &mut text);
        write(&directory.join(place), name, &text)?;
    }
    let pages = directory.join("man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(micabox_cli::definition(), &pages)
}

fn write(directory: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join(name), text)
}

/// Writes the schema of the protocol, and a page with it.
fn protocol(directory: &Path) -> io::Result<()> {
    const NAME: &str = "protocol.schema.json";
    let schema = micabox_cli::schema::protocol();
    write(directory, NAME, format!("{schema:#}\n").as_bytes())?;
    let mut page = format!(
        "# Schema of the protocol\n\n[{NAME}]({NAME}) is the JSON Schema of [the protocol](../../docs/protocol.md), \
         made from the types that read and write its messages. These are the parts of it, below `$defs`.\n"
    );
    for (name, part) in schema["$defs"].as_object().into_iter().flatten() {
        let _ = write!(page, "\n## {name}\n\n```json\n{part:#}\n```\n");
    }
    write(directory, "README.md", page.as_bytes())
}

/// Writes the page of a command, and those of the commands below it.
fn pages(command: &Command, directory: &Path, name: &str) -> io::Result<()> {
    let mut page = format!("# {}\n\n", full_name(command));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        paragraphs(&mut page, &about.to_string(), "");
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let _ = writeln!(page, "\n```text\n{usage}\n```");
    let below: Vec<&Command> = (command.get_subcommands())
        .filter(|below| below.get_name() != "help" && !below.is_hide_set())
        .collect();
    if !below.is_empty() {
        page.push_str("\n## Commands\n\n| | |\n|---|---|\n");
    }
    for below in below {
        let file = format!("{}.md", full_name(below).replace(' ', "-"));
        let about = below
            .get_about()
            .map(|about| escaped(&about.to_string()).replace('\n', " "));
        let _ = writeln!(
            page,
            "| [`{}`]({file}) | {} |",
            full_name(below),
            about.unwrap_or_default()
        );
        pages(below, directory, &file)?;
    }
    let mut groups: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let own = if arg.is_positional() {
            "Arguments"
        } else {
            "Options"
        };
        let heading = arg.get_help_heading().unwrap_or(own);
        match groups.iter_mut().find(|(name, _)| *name == heading) {
            Some((_, args)) => args.push(arg),
            None => groups.push((heading, vec![arg])),
        }
    }
    groups.sort_by_key(|(heading, _)| *heading != "Arguments");
    for (heading, args) in groups {
        let _ = writeln!(page, "\n## {heading}");
        args.into_iter().for_each(|arg| argument(&mut page, arg));
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        page.push('\n');
        paragraphs(&mut page, &after.to_string(), "");
    }
    write(directory, name, page.as_bytes())
}

fn full_name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}

/// An argument as a definition: how it is written, and its help.
fn argument(page: &mut String, arg: &Arg) {
    let short = arg.get_short().filter(|_| arg.get_long().is_some());
    let short = short.map(|short| format!("-{short}, ")).unwrap_or_default();
    let _ = write!(page, "\n`{short}{arg}`\n:   ");
    let mut help = arg
        .get_long_help()
        .or(arg.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    if arg.get_action().takes_values() {
        let values = arg.get_possible_values();
        if !arg.is_hide_possible_values_set() && !values.is_empty() {
            help.push('\n');
            for value in values.iter().filter(|value| !value.is_hide_set()) {
                let _ = write!(help, "\n- `{}`", value.get_name());
                if let Some(about) = value.get_help() {
                    let _ = write!(help, ": {about}");
                }
            }
        }
        let defaults = arg.get_default_values();
        if !arg.is_hide_default_value_set() && !defaults.is_empty() {
            let defaults: Vec<_> = defaults
                .iter()
                .map(|default| default.to_string_lossy())
                .collect();
            let _ = write!(help, "\n\nDefault: `{}`", defaults.join(" "));
        }
    }
    paragraphs(page, &help, "    ");
}

/// Text of a help, whose lines after the first are indented.
fn paragraphs(page: &mut String, text: &str, indent: &str) {
    for (number, line) in escaped(text).lines().enumerate() {
        let indent = if number == 0 || line.is_empty() {
            ""
        } else {
            indent
        };
        let _ = writeln!(page, "{indent}{line}");
    }
}

/// Text as Markdown that shows it; code stays as it is.
fn escaped(text: &str) -> String {
    let mut result = String::new();
    for (number, part) in text.split('`').enumerate() {
        if number > 0 {
            result.push('`');
        }
        for letter in part.chars() {
            if number % 2 == 0 && matches!(letter, '\\' | '*' | '_' | '<' | '[' | '|') {
                result.push('\\');
            }
            result.push(letter);
        }
    }
    result
}
