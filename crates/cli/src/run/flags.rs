//! The flags of `mica run`, with Docker's meanings.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "their documentation is text for --help"
)]

mod booleans;
mod command;
mod confinement;
mod dockers;
mod groups;
mod host;
mod machine;
mod mount;
mod ports;
mod rate;
mod sandbox;
mod security;
mod upper;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use micabox::TtySize;
use micabox_image::Platform;

use super::First;
use crate::failure::Failure;
pub use booleans::{boolean, parse};
pub use command::{CommandArgs, Timing};
pub use confinement::{Cpus, cpus, processes};
pub use host::Taken;
pub use machine::{Bound, MachineArgs, Net, Pulls, memory};
pub use rate::{disk_rate, net_rate};
pub use sandbox::SandboxArgs;

/// Run a command from an image in a virtual machine of its own
///
/// Pulls the image if it isn't here. Without a COMMAND, runs what the image says.
/// Everything after IMAGE belongs to the command.
///
/// The sandbox ends with its command, or with mica. Signals are passed on to the command: Ctrl-C sends it
/// SIGINT, a hangup SIGHUP. A second one of these, or SIGTERM, stops the sandbox as `mica stop` does, and
/// another one kills it, and so does a reader that closes the pipe on the other end of the output.
///
/// Exit codes: the command's own, 128 + n if signal n ended it; 124 after --timeout (137
/// if it had to be killed, as coreutils' timeout has it); 125 if mica failed, 126 if the
/// command could not be executed, 127 if it was not found.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mica run [OPTIONS] IMAGE [COMMAND] [ARG...]",
    args_override_self = true,
    disable_help_flag = true,
    mut_args(groups::grouped),
    // As with Docker, where scripts have it.
    mut_arg("hostname", |arg| arg.short('h'))
)]
pub struct Args {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,

    #[command(flatten)]
    pub command: CommandArgs,

    #[command(flatten)]
    pub sandbox: SandboxArgs,

    #[command(flatten)]
    _dockers: dockers::Defaults,

    /// The image, and what to run in it
    // One list, so that no flag is ours once the image is named.
    #[arg(
        required_unless_present_any = ["from", "root_disk"],
        trailing_var_arg = true,
        value_name = "IMAGE"
    )]
    image_and_command: Vec<OsString>,
}

impl Args {
    /// Returns the image's name, if the sandbox is made from one.
    pub fn image(&self) -> Result<Option<&str>, Failure> {
        if !self.sandbox.is_from_image() {
            return Ok(None);
        }
        let name = self.image_and_command.first();
        name.and_then(|name| name.to_str())
            .map(Some)
            .ok_or_else(|| Failure::new("the image's name is not UTF-8"))
    }

    /// Returns the command and its arguments, if any are given.
    pub fn argv(&self) -> &[OsString] {
        let image = usize::from(self.sandbox.is_from_image());
        self.image_and_command.get(image..).unwrap_or_default()
    }

    /// Returns the sandbox's first command, with a terminal of this size if it has one; None if the
    /// sandbox is to be idle.
    pub fn first(&self, tty: Option<TtySize>) -> Option<First<'_>> {
        (!self.command.idle).then(|| First {
            entrypoint: self.command.entrypoint.as_deref(),
            argv: self.argv(),
            tty,
            stdin: self.command.interactive,
        })
    }

    /// Fails if a flag is not for `mica run`.
    pub fn check_for_run(&self) -> Result<(), Failure> {
        if self.command.idle && !self.command.detach {
            return Err(Failure::new("an idle sandbox has nothing to wait for").hint("add -d"));
        }
        if self.command.detach && !self.command.attach.is_empty() {
            return Err(Failure::new("--attach and --detach exclude each other"));
        }
        if self.command.timing.is_some() && !self.command.sig_proxy {
            return Err(Failure::new(
                "--timing and --sig-proxy=false exclude each other: the sandbox may outlive the mica that measures",
            ));
        }
        self.check()
    }

    /// Fails if a flag is not for `mica create`, which runs no command.
    pub fn check_for_create(&self) -> Result<(), Failure> {
        if let Some(flag) = self.command.late() {
            return Err(Failure::new(format!(
                "{flag} is about a command that runs, and `mica create` starts none"
            ))
            .hint("`mica start` starts the sandbox; --max-life bounds how long it runs"));
        }
        if self.command.silent() != [false; 2] {
            return Err(Failure::new("`mica start --attach` prints both outputs")
                .hint("name both, or leave out --attach"));
        }
        self.check()
    }

    /// Fails if the flags ask for something that does not exist.
    fn check(&self) -> Result<(), Failure> {
        let has_command = !self.argv().is_empty() || self.command.entrypoint.is_some();
        if self.command.idle && has_command {
            return Err(Failure::new("an idle sandbox runs no command of its own")
                .hint("run the command with `mica exec`, or omit --idle"));
        }
        self.sandbox.check()
    }
}

fn absolute(flag: &str, path: &[u8]) -> Result<Vec<u8>, Failure> {
    if path.starts_with(b"/") {
        Ok(path.to_vec())
    } else {
        let path = String::from_utf8_lossy(path);
        Err(Failure::new(format!(
            "{flag} {path}: the path is not absolute"
        )))
    }
}

/// Parses `FIRST:/PATH`: a path on the host or a link's target, and an absolute path in the
/// sandbox.
fn pair(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once(":/") {
        Some((first, path)) if !first.is_empty() => Ok((first.into(), format!("/{path}").into())),
        _ => Err("expected two names with a colon between, the second one absolute".into()),
    }
}

/// A value of a flag; None for 0, by which Docker's command line says the default.
pub type OrDefault<T> = Option<T>;

/// Parses what `parse` does, or 0 with any unit.
pub fn zero_or<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<OrDefault<T>, String> + Clone {
    move |text| match bytes(text) {
        Ok(0.0) => Ok(None),
        _ => parse(text).map(Some),
    }
}

/// A value of a flag; None for '', by which Docker's scripts say that there is none.
pub type OrNone<T> = Option<T>;

/// Parses what `parse` does, or ''.
pub fn empty_or<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<OrNone<T>, String> + Clone {
    move |text| match text {
        "" => Ok(None),
        text => parse(text).map(Some),
    }
}

/// Parses the name of a platform.
pub fn platform(text: &str) -> Result<Platform, String> {
    Platform::from_str(text).map_err(|error| error.to_string())
}

/// Parses a size as Docker does, rounded up to whole MiB.
fn mebibytes(text: &str) -> Result<f64, String> {
    Ok((bytes(text)? / f64::from(1 << 20)).ceil())
}

/// Parses a size as Docker does, in bytes.
fn bytes(text: &str) -> Result<f64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit_at = lower
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(lower.len());
    let (number, unit) = lower.split_at(unit_at);
    let shift = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("expected a number with b, k, m, g or t".into()),
    };
    let number: f64 = number.parse().map_err(|_| "expected a number")?;
    let half = f64::from(1_u32 << (shift / 2));
    Ok(number * half * f64::from(1_u32 << (shift - shift / 2)))
}

/// Parses a duration as coreutils' `timeout` does: seconds, or with s, m, h or d. 0 means none.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.as_bytes().last() {
        Some(b's') => (text.strip_suffix('s'), 1.0),
        Some(b'm') => (text.strip_suffix('m'), 60.0),
        Some(b'h') => (text.strip_suffix('h'), 3600.0),
        Some(b'd') => (text.strip_suffix('d'), 86_400.0),
        _ => (Some(text), 1.0),
    };
    let number: f64 = number
        .and_then(|number| number.parse().ok())
        .ok_or("expected a number, with s, m, h or d")?;
    if number < 0.0 {
        return Err("a duration is not negative".into());
    }
    Duration::try_from_secs_f64(number * factor).map_err(|_| "no such duration".into())
}

/// Parses the address of a resolver, with or without a port.
fn resolver(text: &str) -> Result<SocketAddr, String> {
    const PORT: u16 = 53;
    text.parse()
        .map(|address: IpAddr| (address, PORT).into())
        .or_else(|_| text.parse())
        .map_err(|_| "expected an address, as in 192.0.2.1 or 192.0.2.1:5353".into())
}

/// Parses a host name that Linux and resolvers accept: labels as in RFC 1123, and underscores.
fn hostname(text: &str) -> Result<String, String> {
    if micabox::is_hostname(text) {
        Ok(text.to_owned())
    } else {
        Err("expected up to 64 letters, digits, `-`, `_` and `.`, no part beginning or ending with `-`".into())
    }
}

/// Parses the value of `--rm`, as Docker does.
fn forgets(text: &str) -> Result<bool, String> {
    match boolean(text) {
        Some(value) => Ok(value),
        None if text.starts_with('/') => Err(format!("use `--remove {text}`")),
        None => Err("expected true or false; `--remove PATH` removes a path".into()),
    }
}

fn signal(text: &str) -> Result<i32, String> {
    micabox::signal_number(text).ok_or_else(|| "no such signal".into())
}

#[cfg(test)]
mod tests;
