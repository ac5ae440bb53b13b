//! Looks up credentials where `docker login`, `podman login` and `skopeo login` store them.
//!
//! The files are read in this order, and the first that has the registry wins:
//! 1. `$REGISTRY_AUTH_FILE`, if set;
//! 2. `config.json` in `$DOCKER_CONFIG`, else in `~/.docker`;
//! 3. `containers/auth.json` in `$XDG_RUNTIME_DIR`.
//!
//! In a file it is Docker's order: the registry's credential helper or else the credential store;
//! where that has nothing, or can't be run, the file's own entry.

mod file;
mod helper;

use std::env;
use std::fmt;
use std::path::PathBuf;

use file::DockerFile;
use micabox_oci::reference::DEFAULT_REGISTRY;

/// The key under which Docker stores the default registry's credentials.
pub(crate) const DEFAULT_REGISTRY_KEY: &str = "https://index.docker.io/v1/";

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
    /// A token that the registry takes as it is.
    RegistryToken(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keeps secrets out of logs.
        match self {
            Self::Password { username, .. } => write!(f, "Password({username})"),
            Self::IdentityToken(_) => f.write_str("IdentityToken"),
            Self::RegistryToken(_) => f.write_str("RegistryToken"),
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
                // Wherever this process goes.
                .map(|value| std::path::absolute(&value).unwrap_or_else(|_| value.into()))
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
            let Some(docker) = DockerFile::read(file).map_err(error)? else {
                continue;
            };
            let mut own = vec![registry];
            if registry == DEFAULT_REGISTRY {
                own.insert(0, DEFAULT_REGISTRY_KEY);
            }
            for key in docker.keys(registry, repository, &own) {
                if let Some(found) = look_up(&docker, &key).map_err(error)? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }
}

fn look_up(docker: &DockerFile, key: &str) -> Result<Option<Credential>, String> {
    let Some(helper) = docker.helper(key) else {
        return docker.entry(key);
    };
    match helper::ask(helper, key) {
        Ok(Some(found)) => Ok(Some(found)),
        Ok(None) => docker.entry(key),
        // A file that was copied from another machine names helpers that this one lacks.
        Err(problem) => match docker.entry(key)? {
            Some(found) => Ok(Some(found)),
            None => Err(problem),
        },
    }
}
