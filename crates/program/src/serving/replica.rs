//! `mica store serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::registries;

/// Where it listens unless told otherwise: where registries do.
const LISTEN: &str = "127.0.0.1:5000";

/// Serve the store's images to other machines, as a registry that is read-only
///
/// Anything that pulls from registries can pull from it: mica, Docker, containerd, skopeo. Layers are sent as they were
/// archived, not compressed, so an image that was compressed has another digest here: pull it by a tag. With --keep-blobs,
/// what is pulled through has its registry's digests. Machines with mica name it as a mirror in their settings.
#[derive(Debug, clap::Args)]
pub struct ReplicaArgs {
    /// Address and port; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = LISTEN)]
    pub listen: SocketAddr,

    /// Pull what is asked for from this registry, and what has changed there; may be repeated. The first one has the
    /// images whose registry a client doesn't say [docker.io]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = registries::name)]
    pub pull_through: Vec<String>,

    /// Keep what is pulled through as it came, and serve it so: manifests, indexes and layers with their registry's digests.
    /// Takes as much disk space again as the downloads
    #[arg(long, requires = "pull_through")]
    pub keep_blobs: bool,

    /// Serve images of archives as EROFS images as well, for `mica run --lazy`: each is read and compressed once when it
    /// is first asked for, and nothing of it is kept on disk
    #[arg(long)]
    pub erofs: bool,

    /// File with tokens, one on a line: clients need one of them as the password of any user
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// PEM file with this server's certificate, and those between it and its authority
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// PEM file with authorities: clients need a certificate of one of them
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,

    /// Serve clients without a token or certificate at an address that other machines can reach
    #[arg(long, conflicts_with_all = ["token_file", "client_ca"])]
    pub anonymous: bool,
}
