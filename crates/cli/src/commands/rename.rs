//! `mica rename`

use micabox_program::failure::Outcome;
use micabox_program::settings;

/// Give a sandbox another name
///
/// Its host name stays as it is.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,

    /// The new name
    #[arg(value_name = "NAME")]
    name: String,
}

/// Renames a sandbox.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    sandboxes.get(&args.sandbox)?.rename(&args.name)?;
    Ok(0)
}
