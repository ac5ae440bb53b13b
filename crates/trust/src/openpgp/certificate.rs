//! Keys as their owners publish them: a primary key with user IDs and subkeys, and the signatures by which it says that
//! these are its own (RFC 9580, section 10.1).
//!
//! Where the standard leaves a choice, it is GnuPG's: a revocation counts whatever its date, of self-signatures the
//! newest one counts, and a key that has expired has not signed anything.

use super::armor;
use super::key::{Key, Use};
use super::message::Message;
use super::packet::{
    PUBLIC_KEY, PUBLIC_SUBKEY, Packet, Packets, SIGNATURE, USER_ATTRIBUTE, USER_ID,
};
use super::signature::{Signature, hex, kind};

/// Most bytes of a user ID.
const LONGEST_USER_ID: usize = 2048;

/// A primary key with all that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    primary: Key,
    /// Signatures about the key itself.
    direct: Vec<Signature>,
    users: Vec<(Vec<u8>, Vec<Signature>)>,
    subkeys: Vec<(Key, Vec<Signature>)>,
}

/// Who has signed a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signed {
    /// Of the primary key, in hexadecimal digits.
    pub(crate) fingerprint: String,
    /// The owner's name and address, as the key has it.
    pub(crate) user: String,
}

/// What a primary key says of itself.
struct Standing {
    /// When it expires, in seconds since 1970.
    expires: Option<u64>,
    signs: bool,
    user: String,
}

impl Certificate {
    /// Parses a file of public keys, in binary or as text.
    pub(crate) fn parse_all(file: &[u8]) -> Result<Vec<Self>, &'static str> {
        let packets = armor::packets(file)?;
        let mut parser = Parser::default();
        for packet in Packets::new(&packets) {
            parser.add(&packet?)?;
        }
        Ok(parser.all)
    }

    /// Returns who has signed a message, if that is this key or one of its subkeys, at a time in seconds since 1970.
    /// None if the message says that it is another key's.
    pub(crate) fn signer(&self, message: &Message, now: u64) -> Option<Result<Signed, String>> {
        let signature = &message.signature;
        if signature.is_by(&self.primary.fingerprint) {
            return Some(self.signer_of(message, None, now));
        }
        let is_its = |(key, _): &&(Key, _)| signature.is_by(&key.fingerprint);
        let subkey = self.subkeys.iter().find(is_its)?;
        Some(self.signer_of(message, Some(subkey), now))
    }

    fn signer_of(
        &self,
        message: &Message,
        subkey: Option<&(Key, Vec<Signature>)>,
        now: u64,
    ) -> Result<Signed, String> {
        let signature = &message.signature;
        let standing = self.standing(now)?;
        let (key, mut expires) = match subkey {
            None if !standing.signs => {
                return Err(format!("the key {} is not for signing", self.primary));
            }
            None => (&self.primary, None),
            Some((key, signatures)) => (key, self.bound(key, signatures, now)?),
        };
        expires = [expires, standing.expires].into_iter().flatten().min();
        key.check(signature, &message.document, Use::Document)?;
        if expires.is_some_and(|expires| now >= expires) {
            return Err(format!("the key {key} has expired"));
        }
        if signature.created() < key.created || key.created > now {
            return Err(format!("the key {key} is newer than that"));
        }
        if signature.is_expired(now) {
            return Err(format!("it is by the key {key}, and has expired"));
        }
        Ok(Signed {
            fingerprint: hex(&self.primary.fingerprint),
            user: standing.user,
        })
    }

    /// Returns what the primary key says of itself, if it is its owner's still.
    fn standing(&self, now: u64) -> Result<Standing, String> {
        self.primary.check_supported()?;
        let key = self.primary.hashed();
        self.check_revocations(&self.direct, kind::KEY_REVOCATION, &key, &self.primary)?;
        let is_direct = |signature: &&Signature| signature.kind == kind::DIRECT_KEY;
        let direct = self.newest(self.direct.iter().filter(is_direct), &key, now);
        let user = |(id, signatures): &'_ (Vec<u8>, Vec<Signature>)| {
            let length = u32::try_from(id.len()).unwrap_or_default();
            let signed = [&key, &[0xb4][..], &length.to_be_bytes(), id].concat();
            let is_about = |signature: &&Signature| {
                (kind::GENERIC_CERTIFICATION..=kind::POSITIVE_CERTIFICATION)
                    .contains(&signature.kind)
                    || signature.kind == kind::CERTIFICATION_REVOCATION
            };
            let newest = self.newest(signatures.iter().filter(is_about), &signed, now)?;
            let is_revoked = newest.kind == kind::CERTIFICATION_REVOCATION;
            (!is_revoked).then(|| (newest.clone(), id.clone()))
        };
        let users: Vec<_> = self.users.iter().filter_map(user).collect();
        let Some((newest, _)) = users.iter().max_by_key(|(newest, _)| newest.created()) else {
            return Err(format!(
                "the key {} has no user ID of its own",
                self.primary
            ));
        };
        let is_primary = |(signature, _): &&(Signature, _)| signature.says.is_primary_user;
        let named = users.iter().find(is_primary).or_else(|| users.first());
        let own =
            |read: fn(&Signature) -> Option<u64>| direct.and_then(read).or_else(|| read(newest));
        let lifetime = own(|signature| signature.says.key_lifetime).filter(|seconds| *seconds > 0);
        let signs = direct
            .and_then(Signature::lets_sign)
            .or_else(|| newest.lets_sign());
        Ok(Standing {
            expires: lifetime.map(|lifetime| self.primary.created.saturating_add(lifetime)),
            signs: signs.unwrap_or_else(|| self.primary.can_sign()),
            user: named.map(|(_, id)| readable(id)).unwrap_or_default(),
        })
    }

    /// Returns when a subkey expires, if it is the primary key's own and for signing.
    fn bound(
        &self,
        subkey: &Key,
        signatures: &[Signature],
        now: u64,
    ) -> Result<Option<u64>, String> {
        let both = [self.primary.hashed(), subkey.hashed()].concat();
        self.check_revocations(signatures, kind::SUBKEY_REVOCATION, &both, subkey)?;
        let is_binding = |signature: &&Signature| signature.kind == kind::SUBKEY_BINDING;
        let binding = self.newest(signatures.iter().filter(is_binding), &both, now);
        let binding = binding.ok_or_else(|| {
            format!(
                "the subkey {subkey} is not bound to the key {}",
                self.primary
            )
        })?;
        if !binding.lets_sign().unwrap_or_else(|| subkey.can_sign()) {
            return Err(format!("the subkey {subkey} is not for signing"));
        }
        // Else anyone could say that another's key is a subkey of theirs.
        let agrees = binding.says.embedded.as_ref().is_some_and(|embedded| {
            embedded.kind == kind::PRIMARY_KEY_BINDING
                && embedded.is_understood()
                && !embedded.is_expired(now)
                && subkey.check(embedded, &both, Use::Binding).is_ok()
        });
        if !agrees {
            return Err(format!("the subkey {subkey} has not signed that it is one"));
        }
        let lifetime = binding.says.key_lifetime.filter(|seconds| *seconds > 0);
        Ok(lifetime.map(|lifetime| subkey.created.saturating_add(lifetime)))
    }

    /// Returns the newest of signatures by the primary key that are good.
    fn newest<'a>(
        &self,
        signatures: impl Iterator<Item = &'a Signature>,
        signed: &[u8],
        now: u64,
    ) -> Option<&'a Signature> {
        let is_good = |signature: &&Signature| {
            signature.is_by(&self.primary.fingerprint)
                && signature.is_understood()
                && signature.created() >= self.primary.created
                && !signature.is_expired(now)
                && self.primary.check(signature, signed, Use::Binding).is_ok()
        };
        signatures
            .filter(is_good)
            .max_by_key(|signature| signature.created())
    }

    /// Checks that nothing of `signatures` revokes a key. A revocation by another key may be one that the owner has
    /// appointed, which only that key can tell: it counts.
    fn check_revocations(
        &self,
        signatures: &[Signature],
        kind: u8,
        signed: &[u8],
        key: &Key,
    ) -> Result<(), String> {
        let revokes = |signature: &&Signature| {
            let is_own = signature.is_by(&self.primary.fingerprint);
            signature.kind == kind
                && (!is_own || self.primary.check(signature, signed, Use::Binding).is_ok())
        };
        match signatures.iter().find(revokes) {
            Some(_) => Err(format!("the key {key} is revoked")),
            None => Ok(()),
        }
    }
}

fn readable(user: &[u8]) -> String {
    let user = user
        .get(..LONGEST_USER_ID.min(user.len()))
        .unwrap_or_default();
    micabox_oci::printable(&String::from_utf8_lossy(user))
}

/// Puts packets together to keys.
#[derive(Default)]
struct Parser {
    all: Vec<Certificate>,
    /// What the next signatures are about.
    about: About,
    /// Whether what follows belongs to a key that is passed over.
    is_passed_over: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum About {
    /// Nothing that matters.
    #[default]
    Other,
    Key,
    User,
    Subkey,
}

impl Parser {
    fn add(&mut self, packet: &Packet<'_>) -> Result<(), &'static str> {
        match packet.tag {
            PUBLIC_KEY => {
                // One of another version, as GnuPG does.
                self.is_passed_over = packet.body.first() != Some(&4);
                if self.is_passed_over {
                    return Ok(());
                }
                self.all.push(Certificate {
                    primary: Key::parse(&packet.body)?,
                    direct: Vec::new(),
                    users: Vec::new(),
                    subkeys: Vec::new(),
                });
                self.about = About::Key;
            }
            5 | 7 => return Err("it has a secret key: `gpg --export` writes public ones"),
            _ if self.is_passed_over => {}
            _ => self.add_to_last(packet)?,
        }
        Ok(())
    }

    fn add_to_last(&mut self, packet: &Packet<'_>) -> Result<(), &'static str> {
        let Some(last) = self.all.last_mut() else {
            return Ok(());
        };
        match packet.tag {
            USER_ID => {
                last.users.push((packet.body.to_vec(), Vec::new()));
                self.about = About::User;
            }
            PUBLIC_SUBKEY => {
                self.about = About::Other;
                if packet.body.first() == Some(&4) {
                    last.subkeys.push((Key::parse(&packet.body)?, Vec::new()));
                    self.about = About::Subkey;
                }
            }
            USER_ATTRIBUTE => self.about = About::Other,
            SIGNATURE => {
                // One that can't be read can't be relied on.
                let Ok(signature) = Signature::parse(&packet.body) else {
                    return Ok(());
                };
                let list = match self.about {
                    About::Other => None,
                    About::Key => Some(&mut last.direct),
                    About::User => last.users.last_mut().map(|(_, list)| list),
                    About::Subkey => last.subkeys.last_mut().map(|(_, list)| list),
                };
                if let Some(list) = list {
                    list.push(signature);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
