//! `mica create`

use crate::run::AttachOptions;
use crate::run::{self, IdFile, terminal};
use micabox_creation::Preparation;
use micabox_creation::Pulls;
use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::output::print;

/// Make a sandbox without starting it, and print its ID
///
/// Takes the flags of `mica run`. `mica start` starts the sandbox: with `--upper disk` or a folder any
/// number of times, and otherwise once. `mica cp` can put files on its disk before.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mica create [OPTIONS] IMAGE [COMMAND] [ARG...]",
    mut_arg("detach", |arg| arg.hide(true)),
    mut_arg("detach_keys", |arg| arg.hide(true)),
    mut_arg("attach", |arg| arg.hide(true)),
    mut_arg("sig_proxy", |arg| arg.hide(true)),
    mut_arg("timing", |arg| arg.hide(true)),
    mut_arg("timeout", |arg| arg.hide(true)),
    mut_arg("stop_timeout", |arg| arg.hide(true))
)]
pub struct Args {
    #[command(flatten)]
    run: run::Args,
}

/// Makes a sandbox.
pub fn execute(args: &Args) -> Outcome {
    create(&args.run).map_err(|failure| failure.at_least(EXIT_MICA))
}

fn create(args: &run::Args) -> Outcome {
    args.check_for_create()?;
    let options = AttachOptions {
        tty: args.command.tty,
        detached: true,
        ..AttachOptions::default()
    };
    let id_file = IdFile::wanted(args.command.cidfile.as_deref())?;
    let prepared = Preparation {
        options: &args.sandbox,
        image: args.image()?,
        first: args.first(terminal::wanted(&options)?),
        is_detached: false,
        is_stopped: true,
        cancel: micabox::Cancel::default(),
        pulls: Pulls::default(),
    }
    .prepare()?;
    let Some(create) = prepared.create_stopped else {
        return Err(
            Failure::new("can't create without starting: the snapshot includes memory")
                .hint("use `mica run -d --from SNAPSHOT`"),
        );
    };
    let sandbox = create()?;
    if let Some(file) = id_file {
        file.write(sandbox.id())?;
    }
    print(&format!("{}\n", sandbox.id()))?;
    Ok(0)
}
