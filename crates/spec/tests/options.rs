//! Writes the lists of options in the SDKs, or fails if they are not current.

use std::path::Path;
use std::{env, fs};

use micabox_spec::options::{Kind, Opt, find, listed};

/// Variable that has the lists written.
const UPDATE: &str = "UPDATE_OPTIONS";

const BEGIN: &str = "generated from crates/spec/src/options";
const END: &str = "end of what is generated";

/// What differs by language.
struct Language {
    file: &'static str,
    indent: &'static str,
    comment: &'static str,
    /// The words for yes and no.
    booleans: [&'static str; 2],
    name: fn(&str) -> String,
    /// The lines of an option, by its name, its type and its help.
    lines: fn(&str, &str, &str) -> String,
    kind: fn(Kind) -> String,
}

/// `from` is a word of both languages.
fn snake(name: &str) -> String {
    match name {
        "from" => "snapshot".to_owned(),
        name => name.replace('-', "_"),
    }
}

fn camel(name: &str) -> String {
    let snake = snake(name);
    let mut parts = snake.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| {
        let (initial, rest) = part.split_at(1);
        name + &initial.to_uppercase() + rest
    })
}

fn quoted(words: &[&str], between: &str) -> String {
    let words = words.iter().map(|word| format!("\"{word}\""));
    words.collect::<Vec<_>>().join(between)
}

const PYTHON: Language = Language {
    file: "sdk/python/micabox/model/options.py",
    indent: "    ",
    comment: "#",
    booleans: ["True", "False"],
    name: snake,
    lines: |name, kind, help| format!("    {name}: {kind}\n    \"\"\"{help}\"\"\"\n"),
    kind: |kind| match kind {
        Kind::Text => "str".to_owned(),
        Kind::Count => "int".to_owned(),
        Kind::Number => "float | str".to_owned(),
        Kind::Flag => "bool".to_owned(),
        Kind::List => "Sequence[str]".to_owned(),
        Kind::Map => "Mapping[str, str]".to_owned(),
        Kind::OneOf(words) => format!("Literal[{}]", quoted(words, ", ")),
    },
};

const TYPESCRIPT: Language = Language {
    file: "sdk/typescript/src/sandbox/options.ts",
    indent: "  ",
    comment: "//",
    booleans: ["`true`", "`false`"],
    name: camel,
    lines: |name, kind, help| format!("  /** {help} */\n  {name}?: {kind};\n"),
    kind: |kind| match kind {
        Kind::Text => "string".to_owned(),
        Kind::Count => "number".to_owned(),
        Kind::Number => "number | string".to_owned(),
        Kind::Flag => "boolean".to_owned(),
        Kind::List => "readonly string[]".to_owned(),
        Kind::Map => "Readonly<Record<string, string>>".to_owned(),
        // An editor completes the words, and a variable with a text is taken.
        Kind::OneOf(words) => format!("{} | (string & {{}})", quoted(words, " | ")),
    },
};

impl Language {
    fn option(&self, option: &Opt) -> String {
        let help = self.help(option.help);
        let name = (self.name)(option.name);
        (self.lines)(&name, &(self.kind)(option.kind), &help)
    }

    /// Replaces what is in braces.
    fn help(&self, help: &str) -> String {
        let mut parts = help.split('{');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |said, part| {
            let (name, rest) = part.split_once('}').expect("a brace is not closed");
            let word = match name {
                "true" => self.booleans[0].to_owned(),
                "false" => self.booleans[1].to_owned(),
                name => {
                    assert!(find(name).is_some(), "{name}");
                    format!("`{}`", (self.name)(name))
                }
            };
            said + &word + rest
        })
    }

    /// Returns the file's text with the options between its marks.
    fn written(&self, text: &str) -> String {
        let [begin, end] =
            [BEGIN, END].map(|mark| format!("{}{} {mark}\n", self.indent, self.comment));
        let (head, rest) = text.split_once(&begin).expect(BEGIN);
        let (_, tail) = rest.split_once(&end).expect(END);
        let options: String = listed()
            .into_iter()
            .map(|option| self.option(option))
            .collect();
        [head, &begin, &options, &end, tail].concat()
    }
}

#[test]
fn the_lists_of_options_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for language in [PYTHON, TYPESCRIPT] {
        let path = root.join(language.file);
        let text = fs::read_to_string(&path).unwrap();
        let written = language.written(&text);
        if env::var_os(UPDATE).is_some() {
            fs::write(&path, &written).unwrap();
            continue;
        }
        let file = language.file;
        assert!(
            text == written,
            "{file} is not current: {UPDATE}=1 cargo test -p micabox-spec writes it"
        );
    }
}
