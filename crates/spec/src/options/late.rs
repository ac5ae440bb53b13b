//! What comes too late for a machine that continues where it was.

/// Why an option comes too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// This flag would change what the machine or its commands have.
    Flag(&'static str),
    /// What the machine is or does.
    Differs(&'static str),
}

impl Late {
    /// Returns that a flag comes too late, if it is given.
    pub(super) fn flag(is_given: bool, flag: &'static str) -> Option<Self> {
        is_given.then_some(Self::Flag(flag))
    }

    /// Returns that changes before the start do, if there are some.
    pub(super) fn patch(is_given: bool) -> Option<Self> {
        is_given.then_some(Self::Differs("has started already: it cannot be patched"))
    }
}

/// For what never comes too late.
pub(super) fn in_time<T>(_: &T) -> Option<Late> {
    None
}
