//! Reads what a command writes while it runs, then has it end:
//! `cargo run --example stream -- IMAGE`.

use std::io::{BufRead, BufReader};

use micabox::{Command, Sandbox, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const TERM: i32 = 15;
    micabox::run_if_worker();
    let name = std::env::args().nth(1).ok_or("usage: stream IMAGE")?;
    let store = Store::open(&Store::default_root()?)?;
    let sandbox = Sandbox::create(&store, &store.image(&name)?)?;
    let script = "n=0; while :; do n=$((n + 1)); echo line $n; sleep 0.1; done";
    let mut process = sandbox.exec(&Command::new(["sh", "-c", script]))?;
    let stdout = process.stdout.take().ok_or("stdout is a pipe")?;
    for line in BufReader::new(stdout).lines().take(10) {
        println!("{}", line?);
    }
    process.handle().signal(TERM);
    println!("{:?}", process.wait()?);
    Ok(())
}
