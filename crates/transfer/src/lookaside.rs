//! Fetches the signatures of OpenPGP that are kept beside a registry: `signature-1`, `signature-2` and so on, below an
//! address for each image ([signature access]).
//!
//! [signature access]: https://github.com/containers/image/blob/main/docs/signature-protocols.md

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use micabox_image::{Digest, Progress};
use micabox_oci::Reference;
use micabox_registry::{Files, RegistryError};
use micabox_trust::{LARGEST_SIGNATURE, Lookaside, LookasideError};
use url::Url;

use crate::Settings;
use crate::blocking::blocking;

/// Most signatures of a manifest; more are an error, as they are for skopeo and podman.
const MOST: usize = 128;

/// Below the user's home directory, where it is set.
const USER_SETTINGS: &str = ".config/containers/registries.d";
const USER_SIGNATURES: &str = ".local/share/containers/sigstore";
const SYSTEM_SETTINGS: &str = "/etc/containers/registries.d";
const SYSTEM_SIGNATURES: &str = "/var/lib/containers/sigstore";

/// Why the signatures of an image are not known.
#[derive(Debug, thiserror::Error)]
pub enum BesideError {
    /// A file of this machine can't be used: a signature, or one that says where they are.
    #[error(transparent)]
    Lookaside(#[from] LookasideError),
    /// The server that has them, or the connection to it, failed.
    #[error(transparent)]
    Server(#[from] RegistryError),
    /// There are more than are looked at.
    #[error("it has over {MOST} signatures at {at}")]
    TooMany {
        /// The directory, or the server and the path.
        at: String,
    },
}

impl BesideError {
    /// Returns whether it may be over some time later.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Server(error) if error.reason.is_outage())
    }
}

/// Finds signatures beside registries.
#[derive(Clone, Copy)]
pub(crate) struct Beside<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) progress: &'a Arc<dyn Progress>,
}

/// Where an image's signatures are.
enum Place {
    Directory(PathBuf),
    Server(Url),
}

impl Beside<'_> {
    /// Returns the signatures of an image's manifests, each as its file has it.
    pub(crate) async fn signatures(
        self,
        reference: &Reference,
        manifests: &[Digest],
    ) -> Result<Vec<Vec<u8>>, BesideError> {
        let directory = match &self.settings.registries_d {
            Some(directory) => directory.clone(),
            None => settings_directory(),
        };
        let image = reference.clone();
        let place = blocking(move || place(&directory, &image)).await?;
        let mut all = Vec::new();
        for manifest in manifests {
            let name = format!("{}@sha256={}", reference.repository(), manifest.hex());
            let found = match &place {
                Place::Directory(directory) => {
                    let directory = directory.join(name);
                    let read = directory.clone();
                    let found = blocking(move || in_directory(&read)).await?;
                    found.ok_or_else(|| BesideError::TooMany {
                        at: directory.display().to_string(),
                    })?
                }
                Place::Server(base) => self.on_server(base, &name).await?,
            };
            all.extend(found);
        }
        Ok(all)
    }

    async fn on_server(self, base: &Url, name: &str) -> Result<Vec<Vec<u8>>, BesideError> {
        let settings = Arc::new(self.settings.for_registries());
        let files = Files::new(base, &settings, self.progress)?;
        let mut found = Vec::new();
        let below = base.path().trim_end_matches('/');
        for number in 1..=MOST {
            let mut url = base.clone();
            url.set_path(&format!("{below}/{name}/signature-{number}"));
            match files.get(&url, LARGEST_SIGNATURE).await? {
                Some(signature) => found.push(signature),
                None => return Ok(found),
            }
        }
        let host = base.host_str().unwrap_or_default();
        let at = format!("{host}{below}/{name}");
        Err(BesideError::TooMany { at })
    }
}

/// Returns where an image's signatures are, as the files of a directory say.
fn place(directory: &Path, reference: &Reference) -> Result<Place, LookasideError> {
    let lookaside = Lookaside::read(directory)?;
    let Some(at) = lookaside.of(reference) else {
        return Ok(Place::Directory(signatures_directory()));
    };
    let wrong = |problem: &str| LookasideError::Invalid {
        path: directory.to_owned(),
        problem: format!("`{}` {problem}", micabox_oci::printable(at)),
    };
    let url = Url::parse(at).map_err(|_| wrong("is no address"))?;
    match url.scheme() {
        "file" => match url.to_file_path() {
            Ok(path) => Ok(Place::Directory(path)),
            Err(()) => Err(wrong("is no path of this machine")),
        },
        "https" | "http" => Ok(Place::Server(url)),
        _ => Err(wrong("is neither file: nor https: nor http:")),
    }
}

fn settings_directory() -> PathBuf {
    let own = home().map(|home| home.join(USER_SETTINGS));
    own.filter(|own| own.exists())
        .unwrap_or_else(|| SYSTEM_SETTINGS.into())
}

fn signatures_directory() -> PathBuf {
    let own = home().map(|home| home.join(USER_SIGNATURES));
    own.filter(|_| !rustix::process::geteuid().is_root())
        .unwrap_or_else(|| SYSTEM_SIGNATURES.into())
}

fn home() -> Option<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    home.filter(|home| home.is_absolute())
}

/// Reads the signatures in a directory; none if there are too many.
fn in_directory(directory: &Path) -> Result<Option<Vec<Vec<u8>>>, LookasideError> {
    let mut found = Vec::new();
    for number in 1..=MOST {
        let path = directory.join(format!("signature-{number}"));
        let mut bytes = Vec::new();
        let read = File::open(&path)
            .and_then(|file| file.take(LARGEST_SIGNATURE + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) if bytes.len() as u64 > LARGEST_SIGNATURE => {
                let problem = format!("it has over {LARGEST_SIGNATURE} bytes");
                return Err(LookasideError::Invalid { path, problem });
            }
            Ok(_) => found.push(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(found)),
            Err(source) => return Err(LookasideError::Read { path, source }),
        }
    }
    Ok(None)
}
