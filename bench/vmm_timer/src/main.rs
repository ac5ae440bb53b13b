//! Starts machines on KVM, ours and QEMU's in turns, and says what each took: a line of JSON
//! a start, on stdout.
//!
//! `vmm-timer ROUNDS FORKS DIRECTORY`, as root; `vmm-timer rate DIRECTORY` says only how fast
//! this machine is. In DIRECTORY are
//!
//! ```text
//! mica       our program, which is its own worker
//! vmlinux    the kernel
//! stop       the same, but its first instructions say `K` on the serial port and halt
//! bare.cpio  an init that says `init` there, and waits if a word tells it to
//! guest/     kernel and initrd of sandboxes
//! box.tar    an image
//! bundle/    the same as a bundle for `crun`, and `stay.json`, with which it stays; need not exist
//! msb/       microsandbox's programs; need not exist
//! ```
//!
//! FORKS are how many copies of a running sandbox to make, as `1,8,64`; `-` for none.

mod container;
mod host;
mod machines;
mod microsandbox;
mod processes;
mod sandboxes;
mod trace;

use std::error::Error;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Guest RAM of every machine, MiB.
pub const MEMORY_MIB: u32 = 512;

/// The command that takes the least time.
pub const SHORTEST: &str = "true";

fn main() -> Result<()> {
    let usage = "vmm-timer ROUNDS FORKS DIRECTORY | rate DIRECTORY";
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or(usage);
    let rounds = next()?;
    if rounds == "rate" {
        println!("{}", host::rate(Path::new(&next()?))?);
        return Ok(());
    }
    let rounds: usize = rounds.parse()?;
    let forks = next()?;
    let files = PathBuf::from(next()?);

    println!("{}", host::rate(&files)?);
    let trace = trace::Trace::new()?;
    let home = sandboxes::Home::new(&files)?;
    let machines = machines::contenders(&files)?;
    let container = container::Crun::new(&files);
    let sandboxes = machines.len() + sandboxes::WAYS.len();
    let contenders = sandboxes + 1 + usize::from(container.is_some());
    // The first round is not counted: it brings all files into the page cache.
    for round in 0..=rounds {
        for turn in 0..contenders {
            let who = (round + turn) % contenders;
            let report = match machines.get(who) {
                Some(machine) => machine.measure(&files, &trace)?,
                None if who < sandboxes => home.measure(&sandboxes::WAYS[who - machines.len()])?,
                None if who == sandboxes => home.measure_pooled()?,
                None => container
                    .as_ref()
                    .map_or(Ok(Vec::new()), |crun| crun.measure())?,
            };
            let Some(round) = round.checked_sub(1) else {
                continue;
            };
            for mut line in report {
                line["round"] = round.into();
                println!("{line}");
            }
        }
    }
    for line in home.exec(rounds)? {
        println!("{line}");
    }
    if let Some(crun) = &container {
        for line in crun.exec(rounds)? {
            println!("{line}");
        }
    }
    if let Some(microsandbox) = microsandbox::Microsandbox::new(&files) {
        for line in microsandbox.exec(&files, rounds)? {
            println!("{line}");
        }
    }
    for round in 0..rounds {
        let mut line = home.fork()?;
        line["round"] = round.into();
        println!("{line}");
    }
    for count in forks.split(',').filter(|count| *count != "-") {
        for line in home.forks(count.parse()?)? {
            println!("{line}");
        }
    }
    Ok(())
}
