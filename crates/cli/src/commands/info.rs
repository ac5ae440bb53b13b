//! `mica info`

use micabox::Status;
use micabox_image::Platform;
use serde_json::{Value, json};

use super::version::VERSION;
use crate::document::Document;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::host_memory::HostMemory;
use micabox_program::output::{print, print_json, size, write_stdout};
use micabox_program::settings;

/// Show how many sandboxes and images there are, and where
///
/// `mica doctor` shows what this machine supports, `mica store df` what takes space.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print what a template says, of Docker's fields [{{.Containers}}, {{.Architecture}}, {{json .}}]
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<String>,

    /// Print all fields as JSON
    #[arg(long)]
    json: bool,
}

/// Shows the numbers.
pub fn execute(args: &Args) -> Outcome {
    let format = Document::wanted(args.format.as_deref())?;
    let document = document()?;
    if args.json {
        print_json(&document)?;
    } else if let Some(format) = format {
        write_stdout(format.render_strictly(&document)?.as_bytes())?;
    } else {
        print(&text(&document))?;
    }
    Ok(0)
}

/// Docker's fields, those that there are without a daemon.
fn document() -> Result<Value, Failure> {
    let store = settings::store()?;
    let records = settings::sandboxes(&store)?.list()?;
    let count =
        |is: fn(&Status) -> bool| records.iter().filter(|record| is(&record.status)).count();
    let running = count(|status| matches!(status, Status::Starting | Status::Running { .. }));
    let paused = count(|status| matches!(status, Status::Paused { .. }));
    let kernel = rustix::system::uname();
    Ok(json!({
        "Containers": records.len(),
        "ContainersRunning": running,
        "ContainersPaused": paused,
        "ContainersStopped": records.len() - running - paused,
        "Images": store.images()?.len(),
        "Driver": "erofs",
        "DockerRootDir": store.root().display().to_string(),
        "Name": kernel.nodename().to_string_lossy(),
        "KernelVersion": kernel.release().to_string_lossy(),
        "OSType": std::env::consts::OS,
        "Architecture": Platform::host().architecture(),
        "NCPU": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "MemTotal": HostMemory::now().map(|memory| memory.most),
        "ServerVersion": VERSION,
    }))
}

/// Formats the fields for people.
fn text(document: &Value) -> String {
    let number = |name: &str| document[name].as_u64().unwrap_or(0);
    let name = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    format!(
        "sandboxes    {} ({} running, {} paused)\nimages       {}\nstore        {}\n\
         kernel       {}, {}\nprocessors   {}\nmemory       {}, swap included\nmica         {VERSION}\n",
        number("Containers"),
        number("ContainersRunning"),
        number("ContainersPaused"),
        number("Images"),
        name("DockerRootDir"),
        name("KernelVersion"),
        name("Architecture"),
        number("NCPU"),
        size(number("MemTotal")),
    )
}
