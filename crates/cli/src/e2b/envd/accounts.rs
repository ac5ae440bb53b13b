//! Users of a sandbox, and what paths are relative to.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use micabox_async::Files;
use tokio::io::AsyncReadExt;

use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;

/// Most bytes of a file of accounts.
const MOST: u64 = 1 << 20;

/// Most characters of a user's name, and bytes of a path.
const NAME: usize = 64;
const PATH: usize = 4096;

/// Where a request works: as whom, and from which directory.
#[derive(Clone, Debug)]
pub struct Place {
    pub user: String,
    base: PathBuf,
    files: Files,
}

/// Checks a user's name, which the sandbox looks up.
pub fn checked(name: &str) -> Result<String, Problem> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.len() > NAME || !name.chars().all(is_plain) {
        let message = "the user's name is not as expected";
        return Err(Problem::new(Kind::Unauthenticated, message));
    }
    Ok(name.to_owned())
}

impl Place {
    /// A user other than the image's works from its home, the image's from the image's directory.
    pub async fn of(served: &Served, user: Option<&str>) -> Result<Self, Problem> {
        let root = served.connect().await?.files();
        let defaults = served.record().defaults.as_ref();
        let own = defaults.map_or("", |defaults| &defaults.user);
        let user = user.filter(|user| !user.is_empty());
        let base = match user {
            Some(user) => {
                let unknown = || {
                    let message = format!("the sandbox has no user `{user}`");
                    Problem::new(Kind::Unauthenticated, message)
                };
                Accounts::read(&root).await.home(user).ok_or_else(unknown)?
            }
            None => defaults.map_or_else(PathBuf::new, |defaults| (&defaults.workdir).into()),
        };
        let user = user.unwrap_or(own).to_owned();
        Ok(Self {
            base: if base.is_absolute() { base } else { "/".into() },
            files: root.as_user(&user),
            user,
        })
    }

    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the user without a group.
    pub fn name(&self) -> &str {
        match self.user.split(':').next() {
            None | Some("") => "root",
            Some(name) => name,
        }
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Returns a path as an absolute one, without `.` and `..`.
    pub async fn path(&self, given: &str) -> Result<PathBuf, Problem> {
        if given.len() > PATH || given.contains('\0') {
            return Err(Problem::invalid("the path is too long, or has a NUL byte"));
        }
        let joined = match given.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                let home = Accounts::read(&self.files).await.home(&self.user);
                home.unwrap_or_else(|| "/".into())
                    .join(rest.trim_start_matches('/'))
            }
            _ => self.base.join(given),
        };
        let mut path = PathBuf::from("/");
        for part in joined.components() {
            match part {
                Component::Normal(name) => path.push(name),
                Component::ParentDir => {
                    path.pop();
                }
                _ => {}
            }
        }
        Ok(path)
    }
}

/// Reads the beginning of a file, as far as it can be read.
async fn read(files: &Files, path: &str) -> String {
    let mut text = Vec::new();
    if let Ok(file) = files.open_range(path, 0, Some(MOST)).await {
        let _ = file.take(MOST).read_to_end(&mut text).await;
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A sandbox's own account of its users and groups.
#[derive(Debug, Default)]
pub struct Accounts {
    /// Numbers and homes by name.
    users: HashMap<String, (u32, PathBuf)>,
    names: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Accounts {
    /// Reads them; what is not there or can't be read is not known.
    pub async fn read(files: &Files) -> Self {
        let mut accounts = Self::default();
        accounts.add_users(&read(files, "/etc/passwd").await);
        accounts.add_groups(&read(files, "/etc/group").await);
        accounts
    }

    fn add_users(&mut self, text: &str) {
        for line in text.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if let [name, _, number, _, _, home, ..] = *fields
                && let Ok(number) = number.parse()
            {
                self.users.insert(name.to_owned(), (number, home.into()));
                let known = self.names.entry(number);
                known.or_insert_with(|| name.to_owned());
            }
        }
    }

    fn add_groups(&mut self, text: &str) {
        for line in text.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if let [name, _, number, ..] = *fields
                && let Ok(number) = number.parse()
            {
                let known = self.groups.entry(number);
                known.or_insert_with(|| name.to_owned());
            }
        }
    }

    /// The home of a user, who is named or numbered, with or without a group; root's without a name.
    fn home(&self, user: &str) -> Option<PathBuf> {
        let name = match user.split(':').next().unwrap_or_default() {
            "" => "root",
            name => name,
        };
        let named = self.users.get(name);
        let numbered = || self.users.get(self.names.get(&name.parse().ok()?)?);
        let home = named.or_else(numbered).map(|(_, home)| home.clone());
        // Root is one without a file of accounts, too.
        home.or_else(|| ["root", "0"].contains(&name).then(|| "/root".into()))
    }

    /// The name of a user, or its number.
    pub fn user(&self, number: u32) -> String {
        let name = self.names.get(&number).cloned();
        name.unwrap_or_else(|| number.to_string())
    }

    /// The name of a group, or its number.
    pub fn group(&self, number: u32) -> String {
        let name = self.groups.get(&number).cloned();
        name.unwrap_or_else(|| number.to_string())
    }
}
