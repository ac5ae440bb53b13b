//! The command to run: an image's configuration and the caller's overrides, merged as Docker merges
//! them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use micabox_oci::Config;
use micabox_wire::{Confinement, TtySize};
use serde::{Deserialize, Serialize};

use crate::os_text::{pairs, text, texts};

/// A command to run in a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments. A program without a slash is looked for in PATH.
    #[serde(with = "texts")]
    pub argv: Vec<OsString>,
    /// The environment. The agent adds PATH, HOSTNAME, HOME and, on a terminal, TERM if they are
    /// missing.
    #[serde(with = "pairs")]
    pub env: Vec<(OsString, OsString)>,
    /// Working directory, absolute. Empty means `/`.
    #[serde(with = "text")]
    pub workdir: OsString,
    /// Whether the working directory is made if it is missing, as `docker run` does; otherwise the command does
    /// not start then, as with `docker exec`.
    // What commands did before they said it.
    #[serde(default = "yes")]
    pub make_workdir: bool,
    /// `name`, `uid`, `name:group` and so on, resolved in the image. Empty means root.
    pub user: String,
    /// The size of the terminal that replaces the pipes, if there is one.
    pub tty: Option<TtySize>,
    /// Whether the command has a stdin; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// What limits it. Commands that are started later in the sandbox have the same, and where theirs is
    /// the default it is the first one's.
    #[serde(default)]
    pub confinement: Confinement,
}

/// The caller's changes to the image's configuration: `docker run`'s flags.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// A program in place of the image's Entrypoint. `Some("")` removes the Entrypoint. Either way
    /// the image's Cmd does not apply.
    pub entrypoint: Option<OsString>,
    /// Arguments in place of the image's Cmd, if there are any.
    pub args: Vec<OsString>,
    /// Changes to the image's Env, in order.
    pub env: Vec<EnvChange>,
    /// Replaces the image's User.
    pub user: Option<String>,
    /// Replaces the image's WorkingDir; absolute.
    pub workdir: Option<OsString>,
    /// What limits the sandbox's commands.
    pub confinement: Confinement,
}

/// A change to the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvChange {
    /// Sets a variable.
    Set(OsString, OsString),
    /// Removes a variable, wherever it was set.
    Unset(OsString),
}

/// Why an image and the caller's overrides make no command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Neither the image nor the caller names a program.
    #[error("no command: the image has neither Entrypoint nor Cmd; name a program to run")]
    Nothing,
    /// The caller replaces the image's Entrypoint, which discards its Cmd as well, and names no program.
    #[error(
        "no command: an empty --entrypoint discards the image's Entrypoint and Cmd; name a program to run"
    )]
    Discarded,
    /// A working directory that is not absolute.
    #[error("the working directory {0:?} is not an absolute path")]
    RelativeWorkdir(OsString),
    /// The program's name is empty.
    #[error("the program to run has an empty name")]
    EmptyProgram,
    /// A word that Linux can't pass on.
    #[error("the argument or variable {0:?} has a NUL byte")]
    Nul(OsString),
    /// A variable's name that no program could read.
    #[error("{0:?} is not the name of a variable: it is empty, or has `=` or a NUL byte in it")]
    BadVariable(OsString),
    /// Arguments and environment are longer than Linux accepts.
    #[error("arguments and environment are too long")]
    TooLong,
}

fn yes() -> bool {
    true
}

impl Command {
    /// Makes a command of `argv` with defaults for everything else.
    pub fn new<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Makes the command that `docker run` makes of an image's configuration.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn from_image(image: &Config, overrides: &Overrides) -> Result<Self, CommandError> {
        let mut command = Self::in_image(image, overrides)?;
        command.argv = argv(image, overrides);
        command.make_workdir = true;
        match command.argv.first() {
            None if overrides.entrypoint.is_some() => Err(CommandError::Discarded),
            None => Err(CommandError::Nothing),
            Some(program) if program.is_empty() => Err(CommandError::EmptyProgram),
            Some(_) => Ok(command),
        }
    }

    /// Makes the command that `docker exec` makes of it: the image's environment, user and
    /// directory, without its Entrypoint and Cmd. Only the image's own directory is made if it is missing.
    ///
    /// # Errors
    /// [`CommandError::RelativeWorkdir`].
    pub fn in_image(image: &Config, overrides: &Overrides) -> Result<Self, CommandError> {
        let own = workdir(image, None)?;
        let workdir = workdir(image, overrides.workdir.as_deref())?;
        Ok(Self {
            argv: overrides.args.clone(),
            env: environment(image, &overrides.env),
            make_workdir: overrides.workdir.is_none() || own == workdir,
            workdir,
            user: overrides
                .user
                .clone()
                .or_else(|| image.user().clone())
                .unwrap_or_default(),
            tty: None,
            stdin: false,
            confinement: overrides.confinement.clone(),
        })
    }

    /// Makes the command that `docker exec` makes in a container: the environment, user, directory
    /// and limits of `first`, with which the container was made.
    ///
    /// # Errors
    /// [`CommandError::RelativeWorkdir`].
    pub fn beside(first: &Self, overrides: &Overrides) -> Result<Self, CommandError> {
        let mut env = Environment::of(&first.env);
        env.change(&overrides.env);
        let workdir = match &overrides.workdir {
            Some(wish) => workdir(&Config::default(), Some(wish))?,
            None => first.workdir.clone(),
        };
        Ok(Self {
            argv: overrides.args.clone(),
            env: env.finish(),
            make_workdir: workdir == first.workdir,
            workdir,
            user: overrides.user.clone().unwrap_or(first.user.clone()),
            tty: None,
            stdin: false,
            confinement: first.confinement.clone(),
        })
    }

    /// Checks that the command is one that Linux can run.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn check(&self) -> Result<(), CommandError> {
        let program = self.argv.first().ok_or(CommandError::Nothing)?;
        if program.is_empty() {
            return Err(CommandError::EmptyProgram);
        }
        let bad = self.env.iter().find(|(name, _)| {
            let name = name.as_encoded_bytes();
            name.is_empty() || name.contains(&b'=') || name.contains(&0)
        });
        if let Some((name, _)) = bad {
            return Err(CommandError::BadVariable(name.clone()));
        }
        let values = self.env.iter().map(|(_, value)| value);
        let mut words = self.argv.iter().chain(values).chain([&self.workdir]);
        match words.find(|word| word.as_encoded_bytes().contains(&0)) {
            Some(word) => Err(CommandError::Nul(word.clone())),
            None => Ok(()),
        }
    }
}

/// Merges arguments as `docker run` does: arguments replace Cmd; an entrypoint, an empty one too,
/// replaces Entrypoint and removes Cmd.
fn argv(image: &Config, overrides: &Overrides) -> Vec<OsString> {
    let strings = |list: &Option<Vec<String>>| -> Vec<OsString> {
        list.iter().flatten().map(OsString::from).collect()
    };
    let (mut argv, inherits_cmd) = match &overrides.entrypoint {
        None => (strings(image.entrypoint()), true),
        Some(empty) if empty.is_empty() => (Vec::new(), false),
        Some(program) => (vec![program.clone()], false),
    };
    if !overrides.args.is_empty() {
        argv.extend(overrides.args.iter().cloned());
    } else if inherits_cmd {
        argv.extend(strings(image.cmd()));
    }
    argv
}

fn environment(image: &Config, changes: &[EnvChange]) -> Vec<(OsString, OsString)> {
    let mut env = Environment::default();
    for entry in image.env().iter().flatten() {
        // An entry without `=` has no value; Docker's daemon drops it, too.
        if let Some((name, value)) = entry.split_once('=').filter(|(name, _)| !name.is_empty()) {
            env.set(OsStr::new(name), OsStr::new(value));
        }
    }
    env.change(changes);
    env.finish()
}

/// Variables in their order, while they change. A client may send very many of them.
#[derive(Default)]
struct Environment<'a> {
    /// None for one that was removed.
    all: Vec<Option<(&'a OsStr, &'a OsStr)>>,
    /// Where each name is.
    at: HashMap<&'a OsStr, usize>,
}

impl<'a> Environment<'a> {
    /// Begins with some variables. Of those with the same name, the last one counts.
    fn of(known: &'a [(OsString, OsString)]) -> Self {
        let mut env = Self::default();
        for (name, value) in known {
            env.set(name, value);
        }
        env
    }

    /// Applies changes in order.
    fn change(&mut self, changes: &'a [EnvChange]) {
        for change in changes {
            match change {
                EnvChange::Set(name, value) => self.set(name, value),
                EnvChange::Unset(name) => self.unset(name),
            }
        }
    }

    fn set(&mut self, name: &'a OsStr, value: &'a OsStr) {
        let at = *self.at.entry(name).or_insert(self.all.len());
        match self.all.get_mut(at) {
            Some(entry) => *entry = Some((name, value)),
            None => self.all.push(Some((name, value))),
        }
    }

    fn unset(&mut self, name: &OsStr) {
        let at = self.at.remove(name);
        if let Some(entry) = at.and_then(|at| self.all.get_mut(at)) {
            *entry = None;
        }
    }

    fn finish(self) -> Vec<(OsString, OsString)> {
        let left = self.all.into_iter().flatten();
        left.map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

fn workdir(image: &Config, wish: Option<&OsStr>) -> Result<OsString, CommandError> {
    if let Some(wish) = wish.filter(|wish| !wish.is_empty()) {
        if !wish.as_bytes().starts_with(b"/") {
            return Err(CommandError::RelativeWorkdir(wish.to_owned()));
        }
        return Ok(wish.to_owned());
    }
    // An image made by hand may have a relative directory; it is taken from the root.
    let dir = image.working_dir().as_deref().unwrap_or("/");
    let mut bytes = dir.as_bytes().to_vec();
    if !bytes.starts_with(b"/") {
        bytes.insert(0, b'/');
    }
    Ok(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Config {
        let words = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());
        let mut config = Config::default();
        config
            .set_entrypoint(words(&["/entry", "-e"]))
            .set_cmd(words(&["cmd", "arg"]))
            .set_env(words(&["PATH=/bin", "A=1=2", "nothing", "=x"]))
            .set_user(Some("app:staff".to_owned()))
            .set_working_dir(Some("srv".to_owned()));
        config
    }

    fn os(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    fn argv_of(entrypoint: Option<&str>, args: &[&str]) -> Result<Vec<OsString>, CommandError> {
        let overrides = Overrides {
            entrypoint: entrypoint.map(OsString::from),
            args: os(args),
            ..Overrides::default()
        };
        Command::from_image(&image(), &overrides).map(|command| command.argv)
    }

    #[test]
    fn entrypoint_and_cmd_combine_as_in_docker() {
        assert_eq!(argv_of(None, &[]), Ok(os(&["/entry", "-e", "cmd", "arg"])));
        assert_eq!(argv_of(None, &["x"]), Ok(os(&["/entry", "-e", "x"])));
        assert_eq!(argv_of(Some("sh"), &[]), Ok(os(&["sh"])));
        assert_eq!(
            argv_of(Some("sh"), &["-c", "x"]),
            Ok(os(&["sh", "-c", "x"]))
        );
        assert_eq!(argv_of(Some(""), &["x", "y"]), Ok(os(&["x", "y"])));
        assert_eq!(argv_of(Some(""), &[]), Err(CommandError::Discarded));
        assert_eq!(argv_of(Some(""), &[""]), Err(CommandError::EmptyProgram));
    }

    #[test]
    fn an_empty_image_needs_a_command() {
        let overrides = Overrides::default();
        assert_eq!(
            Command::from_image(&Config::default(), &overrides),
            Err(CommandError::Nothing)
        );
        let overrides = Overrides {
            args: os(&["true"]),
            ..overrides
        };
        let command = Command::from_image(&Config::default(), &overrides).unwrap();
        assert_eq!(command.argv, os(&["true"]));
        assert_eq!(command.workdir, "/");
        assert_eq!(command.user, "");
        assert_eq!(command.env, []);
    }

    #[test]
    fn environment_changes_apply_in_order_and_in_place() {
        let set = |name: &str, value: &str| EnvChange::Set(name.into(), value.into());
        let overrides = Overrides {
            env: vec![
                set("B", "2"),
                set("A", "new"),
                EnvChange::Unset("PATH".into()),
                EnvChange::Unset("unknown".into()),
                set("B", "3"),
            ],
            ..Overrides::default()
        };
        let command = Command::from_image(&image(), &overrides).unwrap();
        let env: Vec<_> = command
            .env
            .iter()
            .map(|(name, value)| (name.to_str().unwrap(), value.to_str().unwrap()))
            .collect();
        assert_eq!(env, [("A", "new"), ("B", "3")]);

        let plain = Command::from_image(&image(), &Overrides::default()).unwrap();
        assert_eq!(plain.env[1], ("A".into(), "1=2".into()));
        // One that comes again is the last.
        let overrides = Overrides {
            env: vec![EnvChange::Unset("PATH".into()), set("PATH", "/new")],
            ..Overrides::default()
        };
        let beside = Command::beside(&plain, &overrides).unwrap();
        let expected = [("A", "1=2"), ("PATH", "/new")].map(|(n, v)| (n.into(), v.into()));
        assert_eq!(beside.env, expected);
    }

    /// It would not end if each were compared with all others.
    #[test]
    fn a_million_variables_are_no_work() {
        let name = |number: usize| OsString::from(format!("V{number}"));
        let sets = (0..1_000_000).map(|n| EnvChange::Set(name(n), "x".into()));
        let unsets = (1..1_000_000).map(|n| EnvChange::Unset(name(n)));
        let overrides = Overrides {
            env: sets.chain(unsets).collect(),
            ..Overrides::default()
        };
        let first = Command::default();
        let beside = Command::beside(&first, &overrides).unwrap();
        assert_eq!(beside.env, [(name(0), "x".into())]);
    }

    #[test]
    fn user_and_directory_come_from_the_image_unless_given() {
        let plain = Command::from_image(&image(), &Overrides::default()).unwrap();
        assert_eq!(
            (plain.user.as_str(), plain.workdir.to_str()),
            ("app:staff", Some("/srv"))
        );
        let mut overrides = Overrides {
            user: Some("0".into()),
            workdir: Some("/tmp".into()),
            ..Overrides::default()
        };
        let command = Command::from_image(&image(), &overrides).unwrap();
        assert_eq!(
            (command.user.as_str(), command.workdir.to_str()),
            ("0", Some("/tmp"))
        );
        // A sandbox's own directory is made, one that a later command names is not.
        assert!(plain.make_workdir && command.make_workdir);
        let is_made = |overrides: &Overrides| {
            let beside = Command::beside(&plain, overrides).unwrap();
            let inside = Command::in_image(&image(), overrides).unwrap();
            (beside.make_workdir, inside.make_workdir)
        };
        assert_eq!(is_made(&Overrides::default()), (true, true));
        assert_eq!(is_made(&overrides), (false, false));
        overrides.workdir = Some("/srv".into());
        assert_eq!(is_made(&overrides), (true, true));
        overrides.workdir = Some("tmp".into());
        assert_eq!(
            Command::from_image(&image(), &overrides),
            Err(CommandError::RelativeWorkdir("tmp".into()))
        );
    }
}
