//! The commands in the guest, by the agent's numbers for them.

use std::collections::BTreeMap;
use std::time::Instant;

use super::command::Command;
use crate::protocol::{Failure, Kind};

/// The commands.
#[derive(Debug, Default)]
pub(super) struct Commands {
    all: BTreeMap<u32, Command>,
    next: u32,
    /// The first command, once there has been one.
    pub(super) first: Option<First>,
}

/// The first command, which has the sandbox's lifetime, and when it reached its stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) id: u32,
    pub(super) started: Option<Instant>,
    pub(super) first_output: Option<Instant>,
    pub(super) has_ended: bool,
}

impl First {
    fn new(id: u32) -> Self {
        Self {
            id,
            started: None,
            first_output: None,
            has_ended: false,
        }
    }
}

impl Commands {
    /// Adds the first command of a copy, which a client is to reattach.
    pub(super) fn restore(&mut self, id: u32, command: Command) {
        self.all.insert(id, command);
        self.first = Some(First::new(id));
    }

    /// Returns a number that no command has.
    pub(super) fn new_id(&mut self) -> u32 {
        while self.all.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = id.wrapping_add(1);
        id
    }

    /// Adds a command.
    pub(super) fn insert(&mut self, id: u32, command: Command) {
        if command.lifetime {
            self.first.get_or_insert(First::new(id));
        }
        self.all.insert(id, command);
    }

    pub(super) fn get(&self, id: u32) -> Option<&Command> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Command> {
        self.all.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.all.remove(&id);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Command)> {
        self.all.iter().map(|(&id, command)| (id, command))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Command> {
        self.all.values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Removes all commands, which are returned.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Command> + use<> {
        std::mem::take(&mut self.all).into_values()
    }

    /// Returns whether the command runs.
    pub(super) fn runs(&self, id: u32) -> bool {
        self.get(id).is_some_and(Command::runs)
    }

    /// Returns the command that the guest answers about: it was requested, and has not started.
    ///
    /// # Errors
    /// A violation of the protocol.
    pub(super) fn starting(&mut self, id: u32) -> Result<&mut Command, String> {
        let command = self.get_mut(id).filter(|command| command.is_requested());
        let command =
            command.ok_or_else(|| format!("the guest started command {id} without a request"))?;
        command.answer_by = None;
        Ok(command)
    }

    /// Returns the command of a message that the guest has sent.
    ///
    /// # Errors
    /// A violation of the protocol.
    pub(super) fn running(&mut self, id: u32) -> Result<&mut Command, String> {
        let command = self.get_mut(id).filter(|command| command.runs());
        let command = command.ok_or_else(|| {
            format!("the guest sent a message of command {id}, which does not run")
        })?;
        command.answer_by = None;
        Ok(command)
    }

    /// Returns the first command if it has this number.
    pub(super) fn first_with(&mut self, id: u32) -> Option<&mut First> {
        self.first.as_mut().filter(|first| first.id == id)
    }

    /// Returns the first command unless it has ended.
    pub(super) fn living_first(&self) -> Option<First> {
        self.first.filter(|first| !first.has_ended)
    }

    /// Returns the command that is to be reattached, until a client does.
    pub(super) fn awaited(&self) -> Option<u32> {
        let id = self.first?.id;
        self.get(id)?.is_awaited().then_some(id)
    }

    /// Returns the number and the PID of the first command if it runs, and belongs to a client.
    ///
    /// # Errors
    /// [`nothing_runs`].
    pub(super) fn running_first(&self) -> Result<(u32, u32), Failure> {
        let running = self.living_first().and_then(|first| {
            let command = self.get(first.id).filter(|command| !command.is_awaited());
            Some((first.id, command?.running_pid()?))
        });
        running.ok_or_else(nothing_runs)
    }

    /// Returns the number of the command with this PID, if it runs.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub(super) fn running_with(&self, pid: u32) -> Result<u32, Failure> {
        let mut commands = self.iter();
        let found = commands.find(|(_, command)| {
            !command.is_awaited() && command.running_pid().is_some_and(|other| other == pid)
        });
        found.map(|(id, _)| id).ok_or_else(|| {
            let message = format!("no command with the process ID {pid} runs");
            Failure::new(Kind::NotFound, message)
        })
    }

    /// Returns the next deadline of a command.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let each = |command: &Command| [command.time.until(), command.answer_by];
        self.values().flat_map(each).flatten().min()
    }

    /// Returns the commands that are to get their next signal.
    pub(super) fn late(&self, now: Instant) -> Vec<u32> {
        self.due(now, |command| command.time.until())
    }

    /// Returns the commands that the guest should have answered about. `is_busy`: it can't while it is paused.
    pub(super) fn unanswered(&mut self, now: Instant, is_busy: bool) -> Vec<u32> {
        for command in self.all.values_mut() {
            command.expect_answer(now, is_busy);
        }
        self.due(now, |command| command.answer_by)
    }

    fn due(&self, now: Instant, deadline: impl Fn(&Command) -> Option<Instant>) -> Vec<u32> {
        let is_due = |command: &Command| deadline(command).is_some_and(|deadline| deadline <= now);
        let due = self.iter().filter(|(_, command)| is_due(command));
        due.map(|(id, _)| id).collect()
    }
}

/// Returns the failure of a request about a command that runs.
pub(super) fn nothing_runs() -> Failure {
    Failure::new(Kind::Invalid, "the sandbox has no command that runs")
}
