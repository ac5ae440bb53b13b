//! `mica cp`

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use micabox::Patch;

use crate::failure::Failure;
use crate::{Outcome, settings};

/// Copy a file into a stopped sandbox, or out of one
///
/// Reads and writes the sandbox's disk itself; nothing is mounted. Out of a running sandbox,
/// which stands still for a moment, comes what it has flushed. A file that goes in belongs to
/// root.
#[derive(Debug, clap::Args)]
#[command(override_usage = "mica cp FILE SANDBOX:PATH\n       mica cp SANDBOX:PATH FILE")]
pub struct Args {
    /// What to copy
    #[arg(value_name = "FROM")]
    from: String,

    /// Where to; a directory gets the file under its own name
    #[arg(value_name = "TO")]
    to: String,
}

/// Copies.
pub fn execute(args: &Args) -> Outcome {
    match (inside(&args.from), inside(&args.to)) {
        (None, Some((sandbox, path))) => copy_in(Path::new(&args.from), sandbox, path),
        (Some((sandbox, path)), None) => copy_out(sandbox, path, Path::new(&args.to)),
        _ => Err(
            Failure::new("one of the two must be in a sandbox, and the other not")
                .hint("write SANDBOX:/absolute/path, and ./name for a file of yours with a colon"),
        ),
    }
}

/// Sandbox and absolute path.
fn inside(name: &str) -> Option<(&str, &str)> {
    let (sandbox, path) = name.split_once(':')?;
    let is_inside = !sandbox.is_empty() && !sandbox.contains('/') && path.starts_with('/');
    is_inside.then_some((sandbox, path))
}

fn copy_in(from: &Path, sandbox: &str, to: &str) -> Outcome {
    let store = settings::store()?;
    let patch = Patch::File {
        from: from.to_owned(),
        to: to.as_bytes().to_vec(),
    };
    settings::sandboxes(&store)?.patch(&store, sandbox, &[patch])?;
    Ok(0)
}

fn copy_out(sandbox: &str, path: &str, to: &Path) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let to = match to.is_dir() {
        true => to.join(Path::new(path).file_name().unwrap_or_default()),
        false => to.to_owned(),
    };
    let failed =
        |error: std::io::Error| Failure::of(&error).context(&format!("writing {}", to.display()));
    // Only a whole file gets the name.
    let directory = match to.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    let mode = sandboxes.read_file(&store, sandbox, path.as_bytes(), &mut file)?;
    file.flush().map_err(failed)?;
    // Nobody becomes somebody else by a file from a sandbox.
    let permissions = Permissions::from_mode(u32::from(mode) & 0o777);
    file.as_file()
        .set_permissions(permissions)
        .map_err(failed)?;
    file.persist(&to).map_err(|error| failed(error.error))?;
    Ok(0)
}
