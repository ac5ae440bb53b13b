//! What is known of an option beside its field.

use super::late::Late;
use super::taken::Taken;

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// The long name of its flag.
    pub name: &'static str,
    /// Its values.
    pub kind: Kind,
    /// Its description in the lists of the SDKs, with its unit and its default. A name in braces is another option's, or `true`
    /// or `false` in the words of the language.
    pub help: &'static str,
    /// Its place in those lists; None if it is not in them.
    pub listed: Option<u16>,
    /// Its heading in `mica run --help`, and its place below; None if it is not there.
    pub below: Option<(Heading, u16)>,
    /// What has it, and so from when on it comes too late.
    pub whose: Whose,
}

/// An option beside the structure that has its field.
#[derive(Debug)]
pub(super) struct Row<T> {
    pub(super) option: Opt,
    /// Why what is given comes too late for a machine that continues where it was, or for the commands that run in it.
    pub(super) late: fn(&T) -> Option<Late>,
    /// What is taken from this machine.
    pub(super) takes: fn(&T) -> Taken,
}

/// What an option's values are.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Text.
    Text,
    /// A whole number.
    Count,
    /// A number that may have a fraction, or text.
    Number,
    /// Yes or no.
    Flag,
    /// Texts.
    List,
    /// Texts by name.
    Map,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// A heading in `mica run --help`, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// The first command.
    Command,
    /// The sandbox as a whole.
    Sandbox,
    /// Its files.
    Files,
    /// Limits and rights.
    Limits,
    /// Its network.
    Network,
    /// What runs it.
    Machine,
}

impl Heading {
    /// Returns its text.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Command => "Command",
            Self::Sandbox => "Sandbox",
            Self::Files => "Files",
            Self::Limits => "Limits and rights",
            Self::Network => "Network",
            Self::Machine => "Machine",
        }
    }
}

/// What an option is a setting of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Each sandbox: a copy of a machine has its own.
    Sandbox,
    /// The root that an image becomes. That of a snapshot is there already.
    Image,
    /// The machine, from its start on, though some can be added to what one has that continues where it was.
    Machine,
    /// All commands, those too that run in a machine which continues where it was.
    Commands,
}
