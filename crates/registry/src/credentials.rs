//! Credentials from where `docker login`, `podman login` and `skopeo login` leave them.
//!
//! Asked in this order, the first that knows the registry wins:
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

/// What Docker files the default registry's credentials under.
const DEFAULT_REGISTRY_KEY: &str = "https://index.docker.io/v1/";
/// A configuration file larger than this isn't one.
const MAX_FILE: u64 = 4 << 20;
/// Bytes of a helper's complaint that an error repeats.
const MAX_COMPLAINT: usize = 300;

/// Something that proves to a registry who asks.
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
        // No secret ends up in a log by accident.
        match self {
            Self::Password { username, .. } => write!(f, "Password({username})"),
            Self::IdentityToken(_) => f.write_str("IdentityToken"),
        }
    }
}

/// Why credentials that seem to be configured could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot get the credentials for {registry} from {}: {problem}", file.display())]
pub struct CredentialError {
    /// The registry.
    pub registry: String,
    /// The file that says where they are.
    pub file: PathBuf,
    /// What went wrong.
    pub problem: String,
}

/// Where credentials are looked for.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    files: Vec<PathBuf>,
}

impl Credentials {
    /// The files of whoever runs this process.
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

    /// Files in Docker's format, in the order in which to ask them.
    pub fn from_files(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            files: files.into_iter().collect(),
        }
    }

    /// Anonymous everywhere.
    pub fn none() -> Self {
        Self::default()
    }

    /// What to show `registry` for `repository`; `None` if nothing is configured for it.
    ///
    /// May run a credential helper, which may take as long as its user does: not for an
    /// asynchronous task.
    ///
    /// # Errors
    ///
    /// [`CredentialError`]: something is configured, and can't be had.
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

/// The names under which a file may hold the credentials, most specific first.
///
/// Docker's are by registry, those of the containers tools may be by repository or a parent
/// of it too; the latter only count where `file` has them, so that no helper is run for
/// every part of a path.
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

/// Whether a failure only says that there are no credentials.
fn knows_nothing(failure: &CredentialRetrievalError) -> bool {
    match failure {
        CredentialRetrievalError::NoCredentialConfigured => true,
        // The sentence that Docker's helper protocol fixes for this; on either stream, since
        // not every helper follows it to the letter.
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
            let complaint = if stderr.trim().is_empty() {
                stdout
            } else {
                stderr
            };
            let complaint: String = complaint
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
