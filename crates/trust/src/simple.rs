//! Simple signing: statements about images that GnuPG signs, kept beside the registry ([containers-signature(5)]).
//!
//! [containers-signature(5)]: https://github.com/containers/image/blob/main/docs/containers-signature.5.md

use micabox_ground::clock;

use crate::openpgp::{Message, Signed};
use crate::payload::{Payload, SIMPLE_SIGNING};
use crate::policy::SignedBy;
use crate::verify::{Problem, check_payload};
use crate::{Signer, Subject};

/// Most bytes of a signature.
pub const LARGEST_SIGNATURE: u64 = crate::openpgp::LARGEST as u64;

/// What files of signatures begin with that name their format, up to a line's end.
const NAMED: &[u8] = b"\0";
const SIMPLE: &[u8] = b"simple-signing";

impl SignedBy {
    /// Returns who signed the subject with the signature in a file.
    pub(crate) fn check(&self, subject: Subject<'_>, file: &[u8]) -> Result<Signer, Problem> {
        let message = openpgp(file).and_then(Message::parse);
        let message = message.map_err(|problem| Problem::at(0, problem))?;
        let signed = self.signed(&message)?;
        let payload = Payload::parse(&message.document, SIMPLE_SIGNING);
        let payload = payload.map_err(|problem| Problem::at(2, problem))?;
        check_payload(&payload, subject, &self.identity)?;
        Ok(Signer::OpenPgp {
            fingerprint: signed.fingerprint,
            user: signed.user,
        })
    }

    fn signed(&self, message: &Message) -> Result<Signed, Problem> {
        let now = clock::now().as_secs();
        let mut problem = match message.issuer() {
            Some(key) => format!("it is by the key {key}, which the policy does not have"),
            None => "it does not say which key it is by".to_owned(),
        };
        let mut step = 0;
        // Several keys may have one name, and several files one key.
        for outcome in self.keys.iter().filter_map(|key| key.signer(message, now)) {
            match outcome {
                Ok(signed) => return Ok(signed),
                Err(found) => (problem, step) = (found, 1),
            }
        }
        Err(Problem::at(step, problem))
    }
}

/// Returns the message in a file, which may name its format first.
fn openpgp(file: &[u8]) -> Result<&[u8], &'static str> {
    let Some(named) = file.strip_prefix(NAMED) else {
        return Ok(file);
    };
    let end = named.iter().position(|byte| *byte == b'\n');
    match end.and_then(|end| named.split_at_checked(end)) {
        Some((SIMPLE, message)) => Ok(message.get(1..).unwrap_or_default()),
        _ => Err("it is no signature of OpenPGP"),
    }
}
