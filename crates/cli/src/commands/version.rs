//! `mica version`

use micabox_image::Platform;
use serde_json::{Value, json};

use crate::document::Document;
use micabox_program::failure::Outcome;
use micabox_program::output::{print, print_json, write_stdout};

/// This program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Show the version
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print what a template says, of Docker's fields [{{.Client.Version}}, {{json .}}]
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<String>,

    /// Print all fields as JSON
    #[arg(long)]
    json: bool,
}

/// Shows the version.
pub fn execute(args: &Args) -> Outcome {
    let format = Document::wanted(args.format.as_deref())?;
    let document = document();
    if args.json {
        print_json(&document)?;
    } else if let Some(format) = format {
        write_stdout(format.render_strictly(&document)?.as_bytes())?;
    } else {
        let platform = Platform::host();
        print(&format!("mica {VERSION}, {platform}\n"))?;
    }
    Ok(0)
}

/// Docker's fields. There is no server, so its part is the same: what asks for its version asks what it can do.
fn document() -> Value {
    let part = json!({
        "Version": VERSION,
        "Os": std::env::consts::OS,
        "Arch": Platform::host().architecture(),
    });
    json!({"Client": part, "Server": part})
}
