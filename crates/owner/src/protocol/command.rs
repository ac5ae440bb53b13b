//! Requests to run a command of a sandbox's settings.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use micabox_spec::{Command, CommandError};
use micabox_wire::Confinement;

use super::{ConfinementChange, Exec, Text};

/// The request for a sandbox's owner, without streams. Fails if Linux can't run such a command.
impl TryFrom<&Command> for Exec {
    type Error = CommandError;

    fn try_from(command: &Command) -> Result<Self, CommandError> {
        command.check()?;
        let text = |text: &OsString| Text(text.as_bytes().to_vec());
        Ok(Self {
            argv: command.argv.iter().map(text).collect(),
            env: command
                .env
                .iter()
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
            workdir: text(&command.workdir),
            make_workdir: command.make_workdir,
            user: command.user.clone(),
            confinement: change_to(&command.confinement),
            tty: command.tty,
            ..Self::default()
        })
    }
}

/// Returns what a command with this confinement has otherwise than its sandbox's: all that it names.
fn change_to(confinement: &Confinement) -> ConfinementChange {
    let Confinement {
        capabilities,
        ulimits,
        groups,
        // It is the sandbox's, for all of its commands.
        no_new_privileges: _,
    } = confinement.clone();
    ConfinementChange {
        capabilities,
        ulimits: Some(ulimits).filter(|ulimits| !ulimits.is_empty()),
        groups: Some(groups).filter(|groups| !groups.is_empty()),
    }
}
