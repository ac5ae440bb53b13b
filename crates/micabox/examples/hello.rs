//! Runs a command in a sandbox of its own: `cargo run --example hello -- IMAGE COMMAND...`.
//! The image must be in the store (`mica pull`).

use std::process::ExitCode;

use micabox::{Command, Sandbox, Store};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    micabox::run_if_worker();
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("usage: hello IMAGE COMMAND...")?;
    let store = Store::open(&Store::default_root()?)?;
    let sandbox = Sandbox::create(&store, &store.image(&name)?)?;
    let finished = sandbox.exec(&Command::new(arguments))?.finish()?;
    print!("{}", String::from_utf8_lossy(&finished.stdout));
    eprint!("{}", String::from_utf8_lossy(&finished.stderr));
    Ok(ExitCode::from(u8::try_from(finished.status.code())?))
}
