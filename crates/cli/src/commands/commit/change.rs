//! Applies `--change`: a Dockerfile's instructions about an image's configuration.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use oci_spec::image::Config;

/// Applies the instructions in order.
///
/// # Errors
/// The instruction and what is wrong with it.
pub fn apply(config: &mut Config, instructions: &[String]) -> Result<(), String> {
    let mut has_command = false;
    for text in instructions {
        let wrong = |problem: &str| format!("--change {text:?}: {problem}");
        let (name, rest) = text
            .trim()
            .split_once(char::is_whitespace)
            .unwrap_or((text, ""));
        let rest = rest.trim();
        if rest.is_empty() {
            return Err(wrong("expected an instruction and its arguments"));
        }
        let words = || words(rest, config.env().as_deref().unwrap_or_default());
        match name.to_ascii_uppercase().as_str() {
            "CMD" => {
                has_command = true;
                config.set_cmd(Some(command(rest)));
            }
            "ENTRYPOINT" => {
                config.set_entrypoint(Some(command(rest)));
                // The image's Cmd belongs to its old Entrypoint.
                if !has_command {
                    config.set_cmd(None);
                }
            }
            "ENV" => {
                let pairs = pairs(rest, words().map_err(wrong)?).map_err(wrong)?;
                let mut env = config.env().clone().unwrap_or_default();
                for (name, value) in pairs {
                    let prefix = format!("{name}=");
                    let set = format!("{prefix}{value}");
                    match env.iter_mut().find(|known| known.starts_with(&prefix)) {
                        Some(known) => *known = set,
                        None => env.push(set),
                    }
                }
                config.set_env(Some(env));
            }
            "LABEL" => {
                let pairs = pairs(rest, words().map_err(wrong)?).map_err(wrong)?;
                let mut labels: HashMap<_, _> = config.labels().clone().unwrap_or_default();
                labels.extend(pairs);
                config.set_labels(Some(labels));
            }
            "EXPOSE" => {
                let mut ports = config.exposed_ports().clone().unwrap_or_default();
                for word in words().map_err(wrong)? {
                    let port = port(&word).ok_or_else(|| wrong("expected PORT or PORT/udp"))?;
                    if !ports.contains(&port) {
                        ports.push(port);
                    }
                }
                config.set_exposed_ports(Some(ports));
            }
            "VOLUME" => {
                let mut volumes = config.volumes().clone().unwrap_or_default();
                let new = match json(rest) {
                    Some(list) => list,
                    None => words().map_err(wrong)?,
                };
                let known: HashSet<String> = volumes.iter().cloned().collect();
                volumes.extend(new.into_iter().filter(|path| !known.contains(path)));
                config.set_volumes(Some(volumes));
            }
            "USER" => {
                config.set_user(Some(words().map_err(wrong)?.join(" ")));
            }
            "STOPSIGNAL" => {
                config.set_stop_signal(Some(words().map_err(wrong)?.join(" ")));
            }
            "WORKDIR" => {
                let path = words().map_err(wrong)?.join(" ");
                let before = config.working_dir().clone().unwrap_or_default();
                let path = Path::new("/").join(before).join(path);
                config.set_working_dir(Some(path.to_string_lossy().into_owned()));
            }
            _ => {
                return Err(wrong(
                    "no instruction for this: it takes CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, \
                     STOPSIGNAL, USER, VOLUME and WORKDIR",
                ));
            }
        }
    }
    Ok(())
}

/// Parses a command: a JSON list of words, or a line for the shell.
fn command(text: &str) -> Vec<String> {
    json(text).unwrap_or_else(|| vec!["/bin/sh".into(), "-c".into(), text.to_owned()])
}

/// Parses a JSON list of words.
fn json(text: &str) -> Option<Vec<String>> {
    serde_json::from_str(text).ok()
}

/// Parses names and values: `NAME=VALUE ...`, or the old `NAME VALUE`.
fn pairs(text: &str, words: Vec<String>) -> Result<Vec<(String, String)>, &'static str> {
    let is_old = text
        .split_whitespace()
        .next()
        .is_some_and(|word| !word.contains('='));
    if let (true, Some((name, _))) = (is_old, words.split_first()) {
        let value = text.split_once(char::is_whitespace);
        let value = value.ok_or("expected NAME=VALUE")?.1.trim_start();
        return Ok(vec![(name.clone(), value.to_owned())]);
    }
    let pair = |word: String| {
        let (name, value) = word.split_once('=').ok_or("expected NAME=VALUE")?;
        if name.is_empty() {
            Err("a name is missing")
        } else {
            Ok((name.to_owned(), value.to_owned()))
        }
    };
    words.into_iter().map(pair).collect()
}

/// Normalizes a port for the configuration.
fn port(word: &str) -> Option<String> {
    let (number, protocol) = word.split_once('/').unwrap_or((word, "tcp"));
    number.parse::<u16>().ok().filter(|number| *number > 0)?;
    let protocol = protocol.to_ascii_lowercase();
    matches!(protocol.as_str(), "tcp" | "udp" | "sctp").then(|| format!("{number}/{protocol}"))
}

/// Splits a line into words: quotes keep blanks, a backslash keeps the next character, and `$NAME`
/// and `${NAME}` stand for variables except between single quotes.
fn words(text: &str, env: &[String]) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match (char, quote) {
            ('\'' | '"', None) => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (char, Some(open)) if char == open => quote = None,
            (_, Some('\'')) => word.get_or_insert_default().push(char),
            ('\\', _) => word.get_or_insert_default().extend(chars.next()),
            ('$', _) => {
                let in_braces = chars.next_if_eq(&'{').is_some();
                let mut name = String::new();
                while let Some(char) =
                    chars.next_if(|char| char.is_ascii_alphanumeric() || *char == '_')
                {
                    name.push(char);
                }
                if in_braces && chars.next() != Some('}') {
                    return Err("expected ${NAME}");
                }
                let set = env
                    .iter()
                    .find_map(|set| set.strip_prefix(&format!("{name}=")));
                let word = word.get_or_insert_default();
                if name.is_empty() {
                    word.push('$');
                } else {
                    word.push_str(set.unwrap_or_default());
                }
            }
            (char, None) if char.is_whitespace() => words.extend(word.take()),
            (char, _) => word.get_or_insert_default().push(char),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed");
    }
    words.extend(word);
    Ok(words)
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
        apply(&mut config, &instructions).unwrap();
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
            "ENV A the rest  of it",
        ]);
        let env = [
            "PATH=/bin:/opt",
            "A=the rest  of it",
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
            "EXPOSE 80 53/udp 80/tcp",
            "VOLUME /x /y",
            "VOLUME [\"/x\", \"/z\"]",
            "USER app:staff",
            "WORKDIR sub",
            "STOPSIGNAL SIGUSR1",
        ]);
        let labels = config.labels().clone().unwrap();
        assert_eq!((&*labels["a"], &*labels["c d"]), ("b", "e f"));
        assert_eq!(*config.exposed_ports(), strings(&["80/tcp", "53/udp"]));
        assert_eq!(*config.volumes(), strings(&["/x", "/y", "/z"]));
        assert_eq!(config.user().as_deref(), Some("app:staff"));
        assert_eq!(config.working_dir().as_deref(), Some("/srv/sub"));
        assert_eq!(config.stop_signal().as_deref(), Some("SIGUSR1"));
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
            "ONBUILD CMD x",
        ] {
            let error = apply(&mut Config::default(), &[text.to_owned()]).unwrap_err();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
