//! `mica login`

use std::fs::File;
use std::io::Read;

use console::Term;
use micabox::ErrorKind;
use micabox_image::Reference;
use micabox_transfer::{
    Credential, Credentials, LoginFile, Reason, Unauthorized, check_login_blocking,
};

use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, write_stderr};
use micabox_program::settings;

/// Most bytes of a password on stdin.
const MAX_PASSWORD: u64 = 64 << 10;

/// Log in to a registry
///
/// The registry is asked whether it takes the password, which is then kept where `docker login` keeps it: with the
/// credential helper that Docker's config.json names, else in that file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the user [default: the terminal is asked]
    #[arg(short, long, value_name = "NAME")]
    username: Option<String>,

    /// Password or token, which other users of this machine can see while this runs
    #[arg(
        short,
        long,
        value_name = "PASSWORD",
        conflicts_with = "password_stdin"
    )]
    password: Option<String>,

    /// Read the password from stdin
    #[arg(long, requires = "username")]
    password_stdin: bool,

    /// The registry: HOST or HOST:PORT
    #[arg(value_name = "REGISTRY", default_value = "docker.io", value_parser = registry)]
    registry: String,
}

/// Logs in to a registry.
pub fn execute(args: &Args) -> Outcome {
    let registry = &args.registry;
    let failed = |failure: Failure| failure.context(&format!("cannot log in to {registry}"));
    let file = LoginFile::from_environment().map_err(|error| Failure::of(&error))?;
    let known = args.known().map_err(failed)?;
    let (credential, is_new) = match known {
        Some(known) => (known, false),
        None => (args.ask().map_err(failed)?, true),
    };
    let taken = check_login_blocking(registry, credential.clone(), &*settings::settings()?);
    let was_asked_for = taken.map_err(|reason| failed(refusal(&reason)))?;
    if !was_asked_for {
        write_stderr(&format!(
            "mica: {registry} asks for no login, so nothing has checked the password\n"
        ));
    }
    if let Credential::Password { username, password } = &credential
        && is_new
    {
        let saved = file.save(registry, username, password);
        let helper = saved.map_err(|error| failed(Failure::of(&error)))?;
        if helper.is_none() {
            write_stderr(&format!(
                "mica: the password is kept in {}, which only you can read\n",
                file.path().display()
            ));
        }
    }
    print("Login Succeeded\n")?;
    Ok(0)
}

impl Args {
    /// Returns what is kept already, unless a user or password is given.
    fn known(&self) -> Result<Option<Credential>, Failure> {
        if self.username.is_some() || self.password.is_some() {
            return Ok(None);
        }
        let known = Credentials::from_environment().lookup(&self.registry, "");
        // What can't be read is replaced.
        let Ok(Some(known)) = known else {
            return Ok(None);
        };
        write_stderr("mica: with the credentials that are kept already\n");
        Ok(Some(known))
    }

    /// Takes the user and password from the command line, stdin or the terminal.
    fn ask(&self) -> Result<Credential, Failure> {
        let username = match &self.username {
            Some(username) => username.clone(),
            None => from_terminal("Username: ", Term::read_line)?,
        };
        let password = match &self.password {
            Some(password) => password.clone(),
            None if self.password_stdin => from_stdin()?,
            None => from_terminal("Password: ", read_secretly)?,
        };
        if username.is_empty() || password.is_empty() {
            let what = if username.is_empty() {
                "user"
            } else {
                "password"
            };
            let message = format!("no {what} is given");
            return Err(Failure::of_kind(ErrorKind::Invalid, message));
        }
        if username.contains(':') {
            let message = "a user's name has no `:`, which would end it";
            return Err(Failure::of_kind(ErrorKind::Invalid, message));
        }
        Ok(Credential::Password { username, password })
    }
}

/// Asks the user of the terminal.
fn from_terminal(
    prompt: &str,
    read: fn(&Term) -> std::io::Result<String>,
) -> Result<String, Failure> {
    let terminal = Term::stderr();
    if !terminal.is_term() {
        return Err(Failure::of_kind(
            ErrorKind::Invalid,
            "there is no terminal to ask for the user and the password",
        )
        .hint("`mica login -u USER --password-stdin REGISTRY` reads the password from stdin"));
    }
    write_stderr(prompt);
    let line =
        read(&terminal).map_err(|error| Failure::of(&error).context("reading the terminal"))?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a line without showing it. A signal that ends this process shows what is typed again before.
fn read_secretly(terminal: &Term) -> std::io::Result<String> {
    let Ok(tty) = File::open("/dev/tty") else {
        return terminal.read_secure_line();
    };
    let shown = tcgetattr(&tty)?;
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let thread = std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _ = tcsetattr(&tty, OptionalActions::Now, &shown);
            let _ = emulate_default_handler(signal);
        }
    });
    let line = terminal.read_secure_line();
    handle.close();
    let _ = thread.join();
    line
}

/// Reads a password, which a line feed may end.
fn from_stdin() -> Result<String, Failure> {
    let reading = |error: std::io::Error| Failure::of(&error).context("reading the password");
    let mut password = String::new();
    let mut stdin = std::io::stdin().lock().take(MAX_PASSWORD + 1);
    stdin.read_to_string(&mut password).map_err(reading)?;
    if password.len() as u64 > MAX_PASSWORD {
        return Err(Failure::of_kind(
            ErrorKind::Invalid,
            "the password on stdin is too long",
        ));
    }
    let password = password.strip_suffix('\n').unwrap_or(&password);
    Ok(password.strip_suffix('\r').unwrap_or(password).to_owned())
}

fn refusal(reason: &Reason) -> Failure {
    match reason {
        Reason::Unauthorized(Unauthorized::Refused { .. }) => {
            Failure::new("it does not take this user name and password")
                .hint("many registries want an access token in place of the password")
        }
        reason => Failure::of(reason),
    }
}

/// Parses a registry, which may be a URL as with Docker.
pub fn registry(text: &str) -> Result<String, String> {
    let host = text.split_once("://").map_or(text, |(_, rest)| rest);
    let (host, _) = host.split_once('/').unwrap_or((host, ""));
    let host = match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    };
    // As it is in a name of an image.
    let name: Result<Reference, _> = format!("{host}/any/image").parse();
    match name {
        Ok(name) if name.registry() == host => Ok(host.to_owned()),
        _ => Err("expected HOST or HOST:PORT".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_host_or_its_url() {
        for (text, host) in [
            ("docker.io", "docker.io"),
            ("https://index.docker.io/v1/", "docker.io"),
            ("localhost:5000", "localhost:5000"),
            ("http://example.com/v2/", "example.com"),
            ("example.com/team", "example.com"),
        ] {
            assert_eq!(registry(text).as_deref(), Ok(host), "{text}");
        }
        for wrong in ["", "https://", "a b", "example"] {
            registry(wrong).unwrap_err();
        }
    }
}
