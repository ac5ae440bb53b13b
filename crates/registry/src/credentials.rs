//! Looks up credentials where `docker login`, `podman login` and `skopeo login` store them.
//!
//! The files are read in this order, and the first that has the registry wins:
//! 1. `$REGISTRY_AUTH_FILE`, if set;
//! 2. `config.json` in `$DOCKER_CONFIG`, else in `~/.docker`: credential helpers for single
//!    registries, entries with a password or an identity token, the credential store;
//! 3. `containers/auth.json` in `$XDG_RUNTIME_DIR`.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use docker_credential::{CredentialRetrievalError, DockerCredential};

use micabox_oci::reference::DEFAULT_REGISTRY;

/// The key under which Docker stores the default registry's credentials.
pub(crate) const DEFAULT_REGISTRY_KEY: &str = "https://index.docker.io/v1/";
/// Largest configuration file that is read, in bytes.
const MAX_FILE: u64 = 4 << 20;
/// Bytes of a helper's error message that an error repeats.
const MAX_COMPLAINT: usize = 300;

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A user name and a password, or a token in place of one.
    Password {
        /// The user's name.
        username: String,
        /// The password.
        password: String,
    },
    /// An OAuth2 refresh token.
    IdentityToken(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keeps secrets out of logs.
        match self {
            Self::Password { username, .. } => write!(f, "Password({username})"),
            Self::IdentityToken(_) => f.write_str("IdentityToken"),
        }
    }
}

/// Why configured credentials could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot get the credentials for {registry} from {}: {problem}", file.display())]
pub struct CredentialError {
    /// The registry.
    pub registry: String,
    /// The file that configures them.
    pub file: PathBuf,
    /// What went wrong.
    pub problem: String,
}

/// The files to look up credentials in.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    files: Vec<PathBuf>,
}

impl Credentials {
    /// Uses the files of the user that runs this process.
    pub fn from_environment() -> Self {
        let variable = |name| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let docker =
            variable("DOCKER_CONFIG").or_else(|| variable("HOME").map(|home| home.join(".docker")));
        let files = [
            variable("REGISTRY_AUTH_FILE"),
            docker.map(|directory| directory.join("config.json")),
            variable("XDG_RUNTIME_DIR").map(|directory| directory.join("containers/auth.json")),
        ];
        Self {
            files: files.into_iter().flatten().collect(),
        }
    }

    /// Uses files in Docker's format, in this order.
    pub fn from_files(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            files: files.into_iter().collect(),
        }
    }

    /// Has no credentials for any registry.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns the credentials for `repository` at `registry`; `None` if none are configured.
    ///
    /// May run a credential helper, which may wait for its user: don't call this in an
    /// asynchronous task.
    ///
    /// # Errors
    ///
    /// [`CredentialError`]: credentials are configured, but can't be read.
    pub fn lookup(
        &self,
        registry: &str,
        repository: &str,
    ) -> Result<Option<Credential>, CredentialError> {
        for file in &self.files {
            let error = |problem| CredentialError {
                registry: registry.to_owned(),
                file: file.clone(),
                problem,
            };
            let Some(text) = read(file).map_err(|problem| error(problem.to_string()))? else {
                continue;
            };
            for key in keys(registry, repository, &text) {
                match docker_credential::get_credential_from_reader(&text[..], &key) {
                    Ok(DockerCredential::UsernamePassword(username, password)) => {
                        // Docker pads stored passwords with NUL bytes.
                        let password = password.trim_end_matches('\0').to_owned();
                        return Ok(Some(Credential::Password { username, password }));
                    }
                    Ok(DockerCredential::IdentityToken(token)) => {
                        return Ok(Some(Credential::IdentityToken(token)));
                    }
                    Err(failure) if knows_nothing(&failure) => {}
                    Err(failure) => return Err(error(describe(&failure))),
                }
            }
        }
        Ok(None)
    }
}

/// Returns the names under which a file may hold the credentials, most specific first.
///
/// Docker stores credentials by registry; the containers tools also by repository or a parent of
/// it. The latter names are returned only if `file` has them, so that no helper runs for every
/// part of a path.
fn keys(registry: &str, repository: &str, file: &[u8]) -> Vec<String> {
    let file: serde_json::Value = serde_json::from_slice(file).unwrap_or_default();
    let has = |key: &str| {
        ["auths", "credHelpers"]
            .iter()
            .any(|table| !file[table][key].is_null())
    };
    let ends = repository.match_indices('/').map(|(end, _)| end);
    let mut keys: Vec<String> = ends
        .chain([repository.len()])
        .filter_map(|end| Some(format!("{registry}/{}", repository.get(..end)?)))
        .filter(|key| has(key))
        .collect();
    keys.reverse();
    if registry == DEFAULT_REGISTRY {
        keys.push(DEFAULT_REGISTRY_KEY.to_owned());
    }
    keys.push(registry.to_owned());
    keys
}

fn read(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    opened.take(MAX_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other("it is larger than 4 MiB"));
    }
    // `podman login` and Docker leave empty files behind.
    Ok(Some(text).filter(|text| !text.trim_ascii().is_empty()))
}

/// Returns whether a failure only means that there are no credentials.
fn knows_nothing(failure: &CredentialRetrievalError) -> bool {
    match failure {
        CredentialRetrievalError::NoCredentialConfigured => true,
        // The sentence that Docker's helper protocol prescribes; on either stream, since not every
        // helper follows the protocol exactly.
        CredentialRetrievalError::HelperFailure { stdout, stderr, .. } => [stdout, stderr]
            .iter()
            .any(|text| text.contains("credentials not found")),
        _ => false,
    }
}

fn describe(failure: &CredentialRetrievalError) -> String {
    match failure {
        CredentialRetrievalError::HelperFailure {
            helper,
            stdout,
            stderr,
        } => {
            let output = if stderr.trim().is_empty() {
                stdout
            } else {
                stderr
            };
            let complaint: String = output
                .trim()
                .chars()
                .filter(|c| !c.is_control())
                .take(MAX_COMPLAINT)
                .collect();
            format!("`{helper} get` failed: {complaint}")
        }
        CredentialRetrievalError::HelperCommunicationError => {
            "the credential helper that it names (docker-credential-…) cannot be run: install it \
             or remove it from the file"
                .to_owned()
        }
        CredentialRetrievalError::MalformedHelperResponse => {
            "the credential helper's answer is not in Docker's format".to_owned()
        }
        CredentialRetrievalError::ConfigReadError => "it is not valid JSON".to_owned(),
        CredentialRetrievalError::CredentialDecodingError => {
            "the entry is damaged: log in again".to_owned()
        }
        other => other.to_string(),
    }
}
