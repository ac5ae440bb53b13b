//! `mica mcp`: what its user allows. A language model calls its tools.

use super::Registries;

/// Give a program with a language model tools to make and use sandboxes (MCP, on stdin and stdout)
///
/// A client names it in its configuration as {"command": "mica", "args": ["mcp"]}. The sandboxes that it
/// makes end with it, unless the tool keep_sandbox was used. Its tools make sandboxes as `mica run` does, but
/// give them no file, folder or variable of this machine, no share of its kernel, none of its own addresses and ports,
/// and no image of a registry that its user has not named, unless flags allow that.
/// They use all sandboxes, snapshots and volumes of this user, those that were made with more included.
#[derive(Clone, Debug, clap::Args)]
pub struct McpArgs {
    /// Allow options of sandboxes that name files, folders or variables of this machine: volume and mount
    /// with a path, upper as a folder, root-disk, patch, patch-tar, env-file, label-file, vsock, and env
    /// without a value
    #[arg(long)]
    pub allow_host_paths: bool,

    /// Allow sandboxes that share this machine's kernel, or are shown more of it: the options backend as "host"
    /// and nested-virtualization
    #[arg(long)]
    pub allow_host_backend: bool,

    /// Allow sandboxes that reach this machine's own and link-local addresses, and resolvers of their own: the option
    /// net-allow with a block of such addresses, and dns
    #[arg(long)]
    pub allow_host_network: bool,

    /// Allow sandboxes whose ports are published on this machine: the option publish
    #[arg(long)]
    pub allow_publish: bool,

    /// The registries that may be asked for images.
    #[command(flatten)]
    pub registries: Registries,
}
