//! The list of commands with a note, as an owner sends it.

use micabox_error::Error;
use micabox_owner::protocol::Reply;

/// A command that runs, with what was noted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedCommand {
    /// Its process ID inside the sandbox.
    pub pid: u32,
    /// Whether it has a terminal.
    pub has_terminal: bool,
    /// [`ExecOptions::note`](crate::ExecOptions::note).
    pub note: String,
}

/// The replies to [`Request::Commands`](micabox_owner::protocol::Request::Commands), as they come.
#[derive(Debug, Default)]
pub struct NotedCommands(Vec<NotedCommand>);

impl NotedCommands {
    /// Adds a reply. Returns the list once it is complete.
    ///
    /// # Errors
    /// That of a [`Reply::Failed`]; [`Error::OwnerGone`] if the reply is another one, as that of an owner whose version
    /// keeps no notes.
    pub fn add(&mut self, reply: Reply) -> Result<Option<Vec<NotedCommand>>, Error> {
        match reply {
            Reply::Command { pid, tty, note } => self.0.push(NotedCommand {
                pid,
                has_terminal: tty,
                note,
            }),
            Reply::Listed => return Ok(Some(std::mem::take(&mut self.0))),
            Reply::Failed(failure) => return Err(failure.into()),
            _ => return Err(Error::OwnerGone),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_complete_when_its_owner_says_so() {
        let mut list = NotedCommands::default();
        let reply = |pid| Reply::Command {
            pid,
            tty: pid == 2,
            note: pid.to_string(),
        };
        assert_eq!(list.add(reply(1)).unwrap(), None);
        assert_eq!(list.add(reply(2)).unwrap(), None);
        let noted = |pid: u32| NotedCommand {
            pid,
            has_terminal: pid == 2,
            note: pid.to_string(),
        };
        let all = list.add(Reply::Listed).unwrap();
        assert_eq!(all, Some(vec![noted(1), noted(2)]));
        let other = list.add(Reply::Signaled).unwrap_err();
        assert!(matches!(other, Error::OwnerGone), "{other:?}");
    }
}
