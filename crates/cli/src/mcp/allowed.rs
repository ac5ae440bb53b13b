//! What tools may take from this machine for a sandbox: nothing, unless the user says so. A language model calls
//! them, and what it read may have been written to make it ask for more.

use crate::failure::Failure;
use crate::run::SandboxArgs;

/// What the user allows.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Allowed {
    /// Allow options of sandboxes that name files, folders or variables of this machine: volume and mount
    /// with a path, upper as a folder, root-disk, patch, patch-tar, env-file, label-file, vsock, and env
    /// without a value
    #[arg(long)]
    allow_host_paths: bool,

    /// Allow sandboxes that share this machine's kernel: the option backend as "host"
    #[arg(long)]
    allow_host_backend: bool,
}

impl Allowed {
    /// Fails if a sandbox would have more of this machine than is allowed.
    pub fn check(self, wanted: &SandboxArgs) -> Result<(), Failure> {
        if !self.allow_host_backend && wanted.is_on_this_kernel() {
            return Err(refused(
                "`backend` \"host\" shares this machine's kernel",
                "--allow-host-backend",
            )
            .hint("omit `backend` for a machine of its own"));
        }
        if !self.allow_host_paths
            && let Some((option, what)) = wanted.of_this_machine()
        {
            let what = format!("`{option}` takes {what} from this machine");
            return Err(refused(&what, "--allow-host-paths")
                .hint("volumes have names, and write_file writes files in a sandbox"));
        }
        Ok(())
    }
}

fn refused(what: &str, flag: &str) -> Failure {
    Failure::new(format!(
        "{what}, which this server does not allow: its user may start it as `mica mcp {flag}`"
    ))
}
