//! The flags of `mica run`, with Docker's meanings.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "their documentation is text for --help"
)]

mod command;
mod dockers;
mod groups;

use std::ffi::OsString;

use micabox::TtySize;
use micabox_spec::options::SandboxOptions;

pub use command::{CommandArgs, Timing};
use micabox_creation::First;
use micabox_program::failure::Failure;

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
    pub sandbox: SandboxOptions,

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
        micabox_creation::check(&self.sandbox)
    }
}

#[cfg(test)]
mod tests;
