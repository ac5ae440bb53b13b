//! Sandboxes that nobody waits for. There is no daemon: another process of this program
//! stays behind, one a sandbox, and does what the one in the foreground would do.

use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use micabox::Sandbox;
use rustix::fs::{Mode, OFlags};

use crate::failure::Failure;
use crate::output::print;

/// Set for the process that stays behind.
const SUPERVISOR: &str = "MICABOX_SUPERVISOR";

/// What became of it.
pub enum Started {
    /// It runs a sandbox.
    Running {
        /// Its ID.
        id: String,
        /// Its name.
        name: String,
    },
    /// It said why not, and ended with this exit code.
    Failed(u8),
}

/// Whether this is the process that stays behind.
pub fn is_supervisor() -> bool {
    std::env::var_os(SUPERVISOR).is_some()
}

/// A process of this program that is to stay behind.
pub struct Supervisor(Child);

impl Supervisor {
    /// Runs this program with `arguments` in one. What goes wrong until the command of its
    /// sandbox runs it says on our stderr, and Ctrl-C gives it up.
    pub fn start(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(failed)?;
        let child = Command::new(program)
            .args(arguments)
            .env(SUPERVISOR, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        child.map(Self).map_err(failed)
    }

    /// Waits until the command runs.
    pub fn wait(mut self) -> Result<Started, Failure> {
        let mut said = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            // To its end, which comes when it lets go of our streams or of its life.
            stdout.read_to_string(&mut said).map_err(failed)?;
        }
        if let Some((id, name)) = said.trim_end().split_once(' ') {
            let (id, name) = (id.to_owned(), name.to_owned());
            return Ok(Started::Running { id, name });
        }
        let code = self.0.wait().map_err(failed)?.code();
        let code = code.and_then(|code| u8::try_from(code).ok());
        Ok(Started::Failed(code.unwrap_or(1).max(1)))
    }
}

fn failed(error: std::io::Error) -> Failure {
    Failure::of(&error).context("starting mica once more")
}

/// Lets go of whoever started us: their terminal, their streams, their signals.
pub fn let_go(sandbox: &Sandbox) -> Result<(), Failure> {
    let record = sandbox.record();
    print(&format!("{} {}\n", record.id, record.name))?;
    let detach = || -> rustix::io::Result<()> {
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        rustix::stdio::dup2_stderr(&nothing)?;
        rustix::process::setsid()?;
        Ok(())
    };
    detach().map_err(|error| {
        Failure::of(&std::io::Error::from(error)).context("letting go of the terminal")
    })
}
