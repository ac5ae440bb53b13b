//! The program `mica-server`, beside `mica`: `mica mcp`, `mica serve --e2b` and `mica store serve` become it. Their protocols
//! would cost every process of mica a twentieth more page faults, and a sandbox is several.

use std::os::unix::process::CommandExt;

use micabox_program::failure::{Failure, Outcome};

/// Its name.
const NAME: &str = "mica-server";

/// Executes it in place of this process, with this process's words.
pub fn become_it() -> Outcome {
    let here = std::env::current_exe().map_err(|error| Failure::of(&error))?;
    let program = here.with_file_name(NAME);
    let error = std::process::Command::new(&program)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(Failure::of(&error)
        .context(&format!("executing {}", program.display()))
        .hint("install it beside mica"))
}
