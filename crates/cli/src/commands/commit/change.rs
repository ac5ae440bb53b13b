//! Applies `--change`: a Dockerfile's instructions about an image's configuration.

use std::path::{Component, Path, PathBuf};

use micabox::words::Signal;
use micabox_image::{Config, DockerConfig};
use serde_json::Value;

use super::healthcheck;
use super::words::{Environment, expand, split};

/// What runs a command that is a line.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// Applies the instructions in order. Each text may have several lines, like a Dockerfile.
///
/// # Errors
/// The instruction and what is wrong with it.
pub fn apply(
    config: &mut Config,
    docker: &mut DockerConfig,
    changes: &[String],
) -> Result<(), String> {
    let mut change = Change {
        config,
        docker,
        has_command: false,
    };
    for text in changes {
        let wrong = |text: &str, problem: String| format!("--change {text:?}: {problem}");
        let instructions = instructions(text);
        if instructions.is_empty() {
            return Err(wrong(text, NOTHING.to_owned()));
        }
        for text in instructions {
            change
                .instruction(&text)
                .map_err(|problem| wrong(&text, problem))?;
        }
    }
    Ok(())
}

const NOTHING: &str = "expected an instruction and its arguments";

/// Splits a text into instructions: comments and empty lines are none, and a backslash at the end
/// of a line continues it.
fn instructions(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut current = String::new();
    for line in text.lines() {
        let line = if current.is_empty() {
            line.trim()
        } else {
            line.trim_end()
        };
        if line.trim_start().starts_with('#') || line.is_empty() {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(begun) => current.push_str(begun),
            None => {
                current.push_str(line);
                all.push(std::mem::take(&mut current));
            }
        }
    }
    if !current.is_empty() {
        all.push(current);
    }
    all
}

struct Change<'a> {
    config: &'a mut Config,
    docker: &'a mut DockerConfig,
    has_command: bool,
}

impl Change<'_> {
    fn instruction(&mut self, text: &str) -> Result<(), String> {
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        if rest.is_empty() {
            return Err(NOTHING.to_owned());
        }
        let config = &*self.config;
        match name.to_ascii_uppercase().as_str() {
            "CMD" => {
                self.has_command = true;
                let command = self.command(rest)?;
                self.config.set_cmd(Some(command));
            }
            "ENTRYPOINT" => {
                let command = self.command(rest)?;
                self.config.set_entrypoint(Some(command));
                // The image's Cmd belongs to its old Entrypoint.
                if !self.has_command {
                    self.config.set_cmd(None);
                }
            }
            "SHELL" => {
                let words = command_words(rest)?.filter(|words| !words.is_empty());
                self.docker.shell =
                    Some(words.ok_or("expected a list like [\"/bin/sh\", \"-c\"]")?);
            }
            "HEALTHCHECK" => self.docker.healthcheck = Some(healthcheck::parse(rest)?),
            "ONBUILD" => self.on_build(rest)?,
            "ENV" => {
                let mut env = config.env().clone().unwrap_or_default();
                for (name, value) in pairs(rest, &self.env())? {
                    let prefix = format!("{name}=");
                    let set = format!("{prefix}{value}");
                    match env.iter_mut().find(|known| known.starts_with(&prefix)) {
                        Some(known) => *known = set,
                        None => env.push(set),
                    }
                }
                self.config.set_env(Some(env));
            }
            "LABEL" => {
                let mut labels = config.labels().clone().unwrap_or_default();
                labels.extend(pairs(rest, &self.env())?);
                self.config.set_labels(Some(labels));
            }
            "EXPOSE" => self.expose(rest)?,
            "VOLUME" => self.volumes(rest)?,
            "USER" => {
                let user = expand(rest, &self.env())?;
                self.config.set_user(Some(user));
            }
            "STOPSIGNAL" => {
                let signal = expand(rest, &self.env())?;
                if signal.parse::<Signal>().is_err() {
                    return Err("expected a signal's name or number".to_owned());
                }
                self.config.set_stop_signal(Some(signal));
            }
            "WORKDIR" => {
                let path = expand(rest, &self.env())?;
                let before = config.working_dir().clone().unwrap_or_default();
                let path = clean(&Path::new("/").join(before).join(path));
                self.config.set_working_dir(Some(path));
            }
            _ => {
                return Err(
                    "no instruction for this: it takes CMD, ENTRYPOINT, ENV, EXPOSE, HEALTHCHECK, \
                     LABEL, ONBUILD, SHELL, STOPSIGNAL, USER, VOLUME and WORKDIR"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    /// Keeps an instruction for builds upon the image.
    fn on_build(&mut self, rest: &str) -> Result<(), String> {
        let trigger = rest.split_whitespace().next().unwrap_or_default();
        let trigger = trigger.to_ascii_uppercase();
        if ["ONBUILD", "FROM", "MAINTAINER"].contains(&&*trigger) {
            return Err(format!("{trigger} can't be for builds upon the image"));
        }
        if has_heredoc(rest) {
            return Err("the lines of a here-document (<<) can't be kept in an image".to_owned());
        }
        self.docker.on_build.push(rest.to_owned());
        Ok(())
    }

    /// Adds ports.
    fn expose(&mut self, rest: &str) -> Result<(), String> {
        let mut ports = self.config.exposed_ports().clone().unwrap_or_default();
        for word in split(rest)? {
            // A variable may have several.
            let words = expand(&word, &self.env())?;
            for word in words.split_whitespace() {
                let new = self::ports(word)
                    .ok_or("expected PORT or FIRST-LAST, and /tcp, /udp or /sctp")?;
                ports.extend(new);
            }
        }
        let mut seen = std::collections::HashSet::new();
        ports.retain(|port| seen.insert(port.clone()));
        self.config.set_exposed_ports(Some(ports));
        Ok(())
    }

    /// Adds volumes: a JSON list of paths, or paths with blanks between.
    fn volumes(&mut self, rest: &str) -> Result<(), String> {
        let mut volumes = self.config.volumes().clone().unwrap_or_default();
        let new = command_words(rest)?
            .unwrap_or_else(|| rest.split_whitespace().map(str::to_owned).collect());
        if new.is_empty() {
            return Err(NOTHING.to_owned());
        }
        for word in new {
            let path = expand(&word, &self.env())?;
            if path.trim().is_empty() {
                return Err("a volume's path is empty".to_owned());
            }
            if !volumes.contains(&path) {
                volumes.push(path);
            }
        }
        self.config.set_volumes(Some(volumes));
        Ok(())
    }

    fn env(&self) -> Environment<'_> {
        Environment(self.config.env().as_deref().unwrap_or_default())
    }

    /// Parses a command: a JSON list of words, or a line for the shell.
    fn command(&self, text: &str) -> Result<Vec<String>, String> {
        Ok(command_words(text)?.unwrap_or_else(|| {
            let mut words = match &self.docker.shell {
                Some(shell) => shell.clone(),
                None => SHELL.map(str::to_owned).to_vec(),
            };
            words.push(text.to_owned());
            words
        }))
    }
}

/// Parses a JSON list of words; `None` for anything else, which is a line.
///
/// # Errors
/// A list of something else than words, as in Docker; and a list with text behind it, which Docker
/// ignores: `[ "$X" ] && y` is begun like a list, and meant as a line.
pub fn command_words(text: &str) -> Result<Option<Vec<String>>, String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let Some(Ok(Value::Array(list))) = values.next() else {
        return Ok(None);
    };
    let rest = text.get(values.byte_offset()..).unwrap_or_default().trim();
    if !rest.is_empty() {
        return Err(format!(
            "it begins with a list, and `{rest}` is behind it: write it as a list, or begin the line otherwise"
        ));
    }
    let word = |value| match value {
        Value::String(word) => Ok(word),
        other => Err(format!("`{other}` in the list is not a string")),
    };
    list.into_iter()
        .map(word)
        .collect::<Result<_, _>>()
        .map(Some)
}

/// Returns whether a line is followed by lines of a here-document: `RUN <<EOF`.
fn has_heredoc(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_word = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '"' | '\'');
    words.any(|word| {
        let behind = word.trim_start_matches(|c: char| c.is_ascii_digit());
        let behind = behind
            .strip_prefix("<<")
            .map(|rest| rest.strip_prefix('-').unwrap_or(rest));
        behind.is_some_and(|name| name.starts_with(is_word))
    })
}

/// Parses names and values: `NAME=VALUE ...`, or the old `NAME VALUE`, whose value is the rest of
/// the line.
fn pairs(text: &str, env: &Environment<'_>) -> Result<Vec<(String, String)>, String> {
    let words = split(text)?;
    let (first, _) = words.split_first().ok_or(NOTHING)?;
    if !first.contains('=') {
        let rest = text.strip_prefix(first.as_str()).unwrap_or_default().trim();
        if rest.is_empty() {
            return Err("expected NAME=VALUE".to_owned());
        }
        return Ok(vec![(expand(first, env)?, expand(rest, env)?)]);
    }
    let pair = |word: &String| {
        let (name, value) = match unquoted_equals(word) {
            Some((name, value)) => (expand(name, env)?, expand(value, env)?),
            // Quotes around both.
            None => {
                let word = expand(word, env)?;
                let (name, value) = word.split_once('=').ok_or("expected NAME=VALUE")?;
                (name.to_owned(), value.to_owned())
            }
        };
        if name.is_empty() {
            return Err("a name is missing".to_owned());
        }
        Ok((name, value))
    };
    words.iter().map(pair).collect()
}

/// Splits a word at the first equals sign that is not between quotes.
fn unquoted_equals(word: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    for (at, char) in word.char_indices() {
        match (char, quote) {
            ('=', None) => return Some((word.get(..at)?, word.get(at + 1..)?)),
            ('\'' | '"', None) => quote = Some(char),
            (char, Some(open)) if char == open => quote = None,
            _ => {}
        }
    }
    None
}

/// Parses ports as `docker run -p` has them and returns those inside, as the configuration has
/// them: `8000-8002/udp`, also with a host's address and ports in front.
fn ports(word: &str) -> Option<Vec<String>> {
    let (ports, protocol) = word.split_once('/').unwrap_or((word, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    if !["tcp", "udp", "sctp"].contains(&&*protocol) {
        return None;
    }
    let inside = ports.rsplit(':').next().unwrap_or_default();
    let (first, last) = inside.split_once('-').unwrap_or((inside, inside));
    let number = |text: &str| text.parse::<u16>().ok().filter(|number| *number > 0);
    let (first, last) = (number(first)?, number(last)?);
    let ports = (first..=last).map(|number| format!("{number}/{protocol}"));
    (first <= last).then(|| ports.collect())
}

/// Returns an absolute path without `.` and `..`.
fn clean(path: &Path) -> String {
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            _ => {}
        }
    }
    clean.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(instructions: &[&str]) -> Config {
        let mut config = Config::default();
        config.set_env(Some(vec!["PATH=/bin".into(), "A=1".into()]));
        config.set_cmd(Some(vec!["old".into()]));
        config.set_working_dir(Some("/srv".into()));
        let instructions: Vec<_> = instructions.iter().map(|text| (*text).to_owned()).collect();
        apply(&mut config, &mut DockerConfig::default(), &instructions).unwrap();
        config
    }

    fn strings(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(|text| (*text).to_owned()).collect())
    }

    #[test]
    fn commands_in_instructions_are_lists_or_lines() {
        let config = applied(&["CMD [\"a\", \"b c\"]", "ENTRYPOINT exec it"]);
        assert_eq!(*config.cmd(), strings(&["a", "b c"]));
        assert_eq!(*config.entrypoint(), strings(&["/bin/sh", "-c", "exec it"]));
        // Docker drops the image's Cmd.
        assert_eq!(*applied(&["entrypoint [\"x\"]"]).cmd(), None);
    }

    #[test]
    fn variables_in_instructions_are_set_and_used() {
        let config = applied(&[
            "ENV PATH=$PATH:/opt \"B=two words\" C='$A' D=\\$A",
            "ENV A the rest  'of'  $D",
        ]);
        let env = [
            "PATH=/bin:/opt",
            "A=the rest  of  $A",
            "B=two words",
            "C=$A",
            "D=$A",
        ];
        assert_eq!(*config.env(), strings(&env));
    }

    #[test]
    fn labels_ports_volumes_and_users_are_set() {
        let config = applied(&[
            "LABEL a=b \"c d\"=\"e f\"",
            "EXPOSE 80 53/UDP 80/tcp 8000-8002 127.0.0.1:1:90",
            "VOLUME /x /y",
            "VOLUME [\"/x\", \"/z\"]",
            "USER app:staff",
            "workdir ./sub/../sub",
            "STOPSIGNAL SIGUSR1",
        ]);
        let labels = config.labels().clone().unwrap();
        assert_eq!((&*labels["a"], &*labels["c d"]), ("b", "e f"));
        assert_eq!(
            *config.exposed_ports(),
            strings(&[
                "80/tcp", "53/udp", "8000/tcp", "8001/tcp", "8002/tcp", "90/tcp"
            ])
        );
        assert_eq!(*config.volumes(), strings(&["/x", "/y", "/z"]));
        assert_eq!(config.user().as_deref(), Some("app:staff"));
        assert_eq!(config.working_dir().as_deref(), Some("/srv/sub"));
        assert_eq!(config.stop_signal().as_deref(), Some("SIGUSR1"));
    }

    #[test]
    fn instructions_that_only_docker_has_are_kept() {
        let mut docker = DockerConfig::default();
        let text = "SHELL [\"/bin/bash\", \"-c\"]\n# a comment\n\nonbuild RUN make \\\n  all\nCMD a && b\n\
            HEALTHCHECK --retries=2 CMD [\"true\"]";
        let mut config = Config::default();
        apply(&mut config, &mut docker, &[text.to_owned()]).unwrap();
        assert_eq!(*config.cmd(), strings(&["/bin/bash", "-c", "a && b"]));
        assert_eq!(docker.on_build, ["RUN make   all"]);
        let check = serde_json::json!({"Retries": 2, "Test": ["CMD", "true"]});
        assert_eq!(docker.healthcheck, Some(check));
    }

    #[test]
    fn malformed_instructions_are_named() {
        for text in [
            "",
            "CMD",
            "RUN make",
            "ENV =x",
            "ENV A=\"x",
            "ENV A",
            "LABEL x=${y",
            "EXPOSE 0",
            "EXPOSE 80/icmp",
            "EXPOSE 9-8",
            "EXPOSE 1-70000",
            "VOLUME [\"\"]",
            "VOLUME []",
            "CMD [\"a\", 1]",
            "ENTRYPOINT [\"a\", [\"b\"]]",
            "CMD [ \"$X\" ] && exec x",
            "HEALTHCHECK CMD [null]",
            "STOPSIGNAL SIGBOGUS",
            "ONBUILD RUN <<EOF\ntrue\nEOF",
            "ONBUILD COPY <<-'END' /x",
            "STOPSIGNAL a b",
            "SHELL /bin/sh",
            "HEALTHCHECK true",
            "ONBUILD ONBUILD CMD x",
            "ONBUILD FROM x",
            "# nothing",
        ] {
            let mut docker = DockerConfig::default();
            let error = apply(&mut Config::default(), &mut docker, &[text.to_owned()]);
            let error = error.unwrap_err();
            let line = text.lines().next().unwrap_or_default();
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }

    #[test]
    fn what_only_looks_like_a_list_is_a_line() {
        for line in ["[ -f x ] && y", "[\"a\"", "\"a\"", "7", "<<EOF", "a <<< b"] {
            let config = applied(&[&format!("CMD {line}")]);
            assert_eq!(*config.cmd(), strings(&["/bin/sh", "-c", line]), "{line}");
        }
        assert_eq!(*applied(&["CMD []"]).cmd(), strings(&[]));
    }
}
