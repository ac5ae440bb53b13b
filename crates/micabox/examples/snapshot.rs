//! Keeps what a sandbox has written as a snapshot, and starts two others from it:
//! `cargo run --example snapshot -- IMAGE`. The image must be in the store (`mica pull`).

use micabox::{Command, Restore, Sandbox, Sandboxes, Store, Upper};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    micabox::run_if_worker();
    let image = std::env::args().nth(1).ok_or("usage: snapshot IMAGE")?;
    let store = Store::open(&Store::default_root()?)?;
    let sandboxes = Sandboxes::open(&store)?;
    let name = format!("example-{}", std::process::id());

    let builder = Sandbox::builder(&store, &store.image(&image)?);
    let sandbox = builder.upper(Upper::Disk { size: 64 << 20 }).create()?;
    run(&sandbox, "echo prepared >/state; sync")?;
    let (snapshot, _) = sandboxes.get(&sandbox.record().id)?.snapshot(&name)?;
    sandbox.end()?;

    for number in 1..=2 {
        let copy = Restore::new(&store, &snapshot)?.create()?;
        print!(
            "{}",
            run(&copy, &format!("echo {number} >>/state; cat /state"))?
        );
    }
    sandboxes.remove_snapshot(&name)?;
    Ok(())
}

fn run(sandbox: &Sandbox, script: &str) -> Result<String, Box<dyn std::error::Error>> {
    let finished = sandbox
        .exec(&Command::new(["sh", "-c", script]))?
        .finish()?;
    if finished.status.code() != 0 {
        return Err(String::from_utf8_lossy(&finished.stderr).into());
    }
    Ok(String::from_utf8_lossy(&finished.stdout).into_owned())
}
