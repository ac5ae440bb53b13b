//! `mica wait`

use serde::Serialize;

use micabox_program::failure::{Failure, Outcome, print_all};
use micabox_program::output::{print, print_json};
use micabox_program::settings;

/// Wait until sandboxes have ended, and print the exit codes of their commands
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print names and exit codes as JSON
    #[arg(long)]
    json: bool,

    /// Names or IDs
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
}

#[derive(Serialize)]
struct Json<'a> {
    sandbox: &'a str,
    exit_code: i32,
}

/// Waits for all at once: one that is removed when it ends must not be missed.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let wait = |name: &String| Ok::<_, Failure>(sandboxes.get(name)?.wait()?);
    let mut failures = Vec::new();
    let mut ended = Vec::new();
    std::thread::scope(|scope| {
        let names = args.sandboxes.iter();
        let threads: Vec<_> = names
            .map(|name| (name, scope.spawn(move || wait(name))))
            .collect();
        for (name, thread) in threads {
            match thread.join() {
                Ok(Ok(exit_code)) => {
                    if !args.json {
                        print(&format!("{exit_code}\n"))?;
                    }
                    ended.push(Json {
                        sandbox: name,
                        exit_code,
                    });
                }
                Ok(Err(failure)) => failures.push(failure),
                Err(_) => failures.push(Failure::new("a thread has died")),
            }
        }
        Ok::<_, Failure>(())
    })?;
    if args.json {
        print_json(&ended)?;
    }
    print_all(&failures);
    Ok(u8::from(!failures.is_empty()))
}
