//! Logs in to registries: checks credentials, and keeps them where `docker login` does.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use micabox_ground::publish;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value, json};

use crate::auth::Authenticator;
use crate::credentials::DEFAULT_REGISTRY_KEY;
use crate::{Credential, Credentials, Reason, Settings, Source};
use micabox_oci::printable;
use micabox_oci::reference::DEFAULT_REGISTRY;

/// Bytes of a helper's error message that an error repeats.
const MAX_COMPLAINT: usize = 300;

/// Why credentials can't be kept or removed.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// There is no directory for the file.
    #[error("cannot tell where to keep credentials: set DOCKER_CONFIG or HOME")]
    NoHome,
    /// The file can't be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a JSON object.
    #[error("{} is not in Docker's format, so nothing is written to it: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The credential helper that the file names failed.
    #[error("`{helper} {action}` failed: {problem}")]
    Helper {
        /// The program.
        helper: String,
        /// What it was to do.
        action: &'static str,
        /// Why it failed.
        problem: String,
    },
}

/// Asks a registry whether it takes a credential. Returns whether it has asked for one at all.
///
/// # Errors
/// [`Reason`]: it refuses the credential, or can't be asked.
pub async fn check(
    registry: &str,
    credential: Credential,
    settings: &Arc<Settings>,
) -> Result<bool, Reason> {
    let plain = settings.plain_http(registry);
    let mut source = Source::new(settings, &Credentials::none(), registry, "any", plain)?;
    source.auth = Authenticator::with(registry, credential);
    let url = source
        .base
        .join("../")
        .map_err(|error| Reason::Settings(format!("`{registry}` is not an address: {error}")))?;
    let answer = source.get(&url, &HeaderMap::new()).await?;
    match answer.status().as_u16() {
        200 => Ok(source.auth.has_logged_in().await),
        _ => Err(answer.refusal(Reason::NoRegistry).await),
    }
}

/// The file with credentials.
#[derive(Debug, Clone)]
pub struct LoginFile {
    path: PathBuf,
}

impl LoginFile {
    /// Returns the file of this process's user, the first one in which [`Credentials`] are looked up.
    ///
    /// # Errors
    /// [`LoginError::NoHome`].
    pub fn from_environment() -> Result<Self, LoginError> {
        let variable = |name| {
            let value = env::var_os(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from)
        };
        let docker =
            variable("DOCKER_CONFIG").or_else(|| variable("HOME").map(|home| home.join(".docker")));
        variable("REGISTRY_AUTH_FILE")
            .or_else(|| docker.map(|directory| directory.join("config.json")))
            .map(Self::at)
            .ok_or(LoginError::NoHome)
    }

    /// Uses the file at `path`.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps a password: with the credential helper that the file names for the registry, else in the file.
    /// Returns the helper. All else in the file stays as it is.
    ///
    /// # Errors
    /// [`LoginError`].
    pub fn save(
        &self,
        registry: &str,
        username: &str,
        password: &str,
    ) -> Result<Option<String>, LoginError> {
        let mut file = self.read()?;
        let key = key(registry);
        let helper = helper(&file, &key);
        let entry = match &helper {
            Some(helper) => {
                let secret = json!({"ServerURL": key, "Username": username, "Secret": password});
                run(helper, "store", &secret.to_string())?;
                json!({})
            }
            None => json!({"auth": STANDARD.encode(format!("{username}:{password}"))}),
        };
        self.table(&mut file, "auths")?.insert(key, entry);
        self.write(&file)?;
        Ok(helper)
    }

    /// Removes what is kept for a registry. Returns whether there was anything.
    ///
    /// # Errors
    /// [`LoginError`].
    pub fn forget(&self, registry: &str) -> Result<bool, LoginError> {
        let mut file = self.read()?;
        let key = key(registry);
        let helper = helper(&file, &key);
        let mut has_changed = false;
        if file.contains_key("auths") {
            let auths = self.table(&mut file, "auths")?;
            let before = auths.len();
            auths.retain(|name, _| name != &key && host_of(name) != registry);
            has_changed = auths.len() < before;
        }
        if let Some(helper) = helper {
            match run(&helper, "erase", &key) {
                // A helper may call it an error that there is nothing.
                Err(LoginError::Helper { .. }) if !has_changed => {}
                erased => erased?,
            }
        }
        if has_changed {
            self.write(&file)?;
        }
        Ok(has_changed)
    }

    fn read(&self) -> Result<Map<String, Value>, LoginError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(self.failed("read", source)),
        };
        if text.trim_ascii().is_empty() {
            return Ok(Map::new());
        }
        serde_json::from_slice(&text).map_err(|error| self.malformed(error.to_string()))
    }

    /// Returns one of the file's tables, which is made if it is missing.
    fn table<'a>(
        &self,
        file: &'a mut Map<String, Value>,
        name: &str,
    ) -> Result<&'a mut Map<String, Value>, LoginError> {
        let table = file.entry(name).or_insert(Value::Null);
        if table.is_null() {
            *table = json!({});
        }
        let table = table.as_object_mut();
        table.ok_or_else(|| self.malformed(format!("`{name}` is not an object")))
    }

    /// Replaces the file, which only its owner may read. A link leads to the file that is replaced.
    fn write(&self, file: &Map<String, Value>) -> Result<(), LoginError> {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let directory = path.parent().unwrap_or(Path::new("."));
        let text = serde_json::to_string_pretty(file).unwrap_or_default() + "\n";
        let written = || -> io::Result<()> {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
            publish(&path, text.as_bytes())
        };
        written().map_err(|source| self.failed("write", source))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> LoginError {
        LoginError::File {
            action,
            path: self.path.clone(),
            source,
        }
    }

    fn malformed(&self, problem: String) -> LoginError {
        LoginError::Malformed {
            path: self.path.clone(),
            problem,
        }
    }
}

/// Returns the name under which Docker keeps a registry's credentials.
fn key(registry: &str) -> String {
    match registry {
        DEFAULT_REGISTRY => DEFAULT_REGISTRY_KEY.to_owned(),
        registry => registry.to_owned(),
    }
}

/// Returns the registry that a name in the file is about: older names are URLs.
fn host_of(name: &str) -> &str {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    let name = name.trim_end_matches('/');
    let name = ["/v1", "/v2"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name);
    match name {
        "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
        name => name,
    }
}

/// Returns the program that the file names for a registry's credentials.
fn helper(file: &Map<String, Value>, key: &str) -> Option<String> {
    let own = file.get("credHelpers").and_then(|helpers| helpers.get(key));
    let name = own.or_else(|| file.get("credsStore"))?.as_str()?;
    (!name.is_empty()).then(|| format!("docker-credential-{name}"))
}

/// Has a credential helper do something with `input`, by Docker's protocol.
fn run(helper: &str, action: &'static str, input: &str) -> Result<(), LoginError> {
    let failed = |problem: String| LoginError::Helper {
        helper: helper.to_owned(),
        action,
        problem,
    };
    let mut child = Command::new(helper)
        .arg(action)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read it says why with its exit code.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let said: String = printable(said.trim()).chars().take(MAX_COMPLAINT).collect();
    Err(failed(said))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn saved(file: &LoginFile) -> Value {
        serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap()
    }

    #[test]
    fn a_login_is_kept_as_docker_keeps_it_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/config.json");
        let file = LoginFile::at(path.clone());
        file.save("localhost:5000", "me", "pass:word").unwrap();
        file.save(DEFAULT_REGISTRY, "you", "é").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(
            saved(&file),
            json!({"auths": {
                "localhost:5000": {"auth": "bWU6cGFzczp3b3Jk"},
                "https://index.docker.io/v1/": {"auth": "eW91OsOp"},
            }})
        );
        let credentials = Credentials::from_files([path]);
        for (registry, username, password) in [
            ("localhost:5000", "me", "pass:word"),
            (DEFAULT_REGISTRY, "you", "é"),
        ] {
            let expected = Credential::Password {
                username: username.into(),
                password: password.into(),
            };
            assert_eq!(credentials.lookup(registry, "a").unwrap(), Some(expected));
            assert!(file.forget(registry).unwrap());
            assert!(!file.forget(registry).unwrap());
            assert_eq!(credentials.lookup(registry, "a").unwrap(), None);
        }
    }

    #[test]
    fn a_login_leaves_all_else_in_the_file_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = ("config.json", "link.json");
        let [path, link] = [path, link].map(|name| directory.path().join(name));
        let before = json!({
            "HttpHeaders": {"User-Agent": "x"}, "detachKeys": "ctrl-q",
            "auths": {"other": {"auth": "YTpi"}, "https://here/v2/": {"identitytoken": "t"}},
        });
        fs::write(&path, before.to_string()).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let file = LoginFile::at(link.clone());
        file.save("here", "me", "secret").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let mut expected = before;
        expected["auths"]["here"] = json!({"auth": "bWU6c2VjcmV0"});
        assert_eq!(saved(&file), expected);
        // What an older client has kept for the same registry goes as well.
        assert!(file.forget("here").unwrap());
        let auths = expected["auths"].as_object_mut().unwrap();
        auths.retain(|name, _| name == "other");
        assert_eq!(saved(&file), expected);

        for wrong in ["[]", "{", "{\"auths\": []}"] {
            fs::write(&path, wrong).unwrap();
            let refused = file.save("here", "me", "secret").unwrap_err();
            assert!(matches!(refused, LoginError::Malformed { .. }), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), wrong);
        }
    }

    #[test]
    fn names_of_older_clients_are_of_their_registry() {
        for (name, registry) in [
            ("https://index.docker.io/v1/", DEFAULT_REGISTRY),
            ("index.docker.io", DEFAULT_REGISTRY),
            ("http://localhost:5000", "localhost:5000"),
            ("https://example.com/v2/", "example.com"),
            ("example.com/team", "example.com/team"),
        ] {
            assert_eq!(host_of(name), registry, "{name}");
        }
    }
}
