//! Signatures of version 4 and what they say (RFC 9580, section 5.2).

use super::packet::{Fields, two_octets};

/// What a signature is about (RFC 9580, section 5.2.1).
pub(super) mod kind {
    pub(crate) const DOCUMENT: u8 = 0x00;
    pub(crate) const TEXT: u8 = 0x01;
    /// Certifications of a user ID: the first of four kinds, and the last one.
    pub(crate) const GENERIC_CERTIFICATION: u8 = 0x10;
    pub(crate) const POSITIVE_CERTIFICATION: u8 = 0x13;
    pub(crate) const SUBKEY_BINDING: u8 = 0x18;
    pub(crate) const PRIMARY_KEY_BINDING: u8 = 0x19;
    pub(crate) const DIRECT_KEY: u8 = 0x1f;
    pub(crate) const KEY_REVOCATION: u8 = 0x20;
    pub(crate) const SUBKEY_REVOCATION: u8 = 0x28;
    pub(crate) const CERTIFICATION_REVOCATION: u8 = 0x30;
}

/// The flag of keys that sign data (RFC 9580, section 5.2.3.29).
const SIGNS: u8 = 0x02;

/// Types of subpackets that are read here (RFC 9580, section 5.2.3.7).
const CREATED: u8 = 2;
const EXPIRES: u8 = 3;
const KEY_EXPIRES: u8 = 9;
const ISSUER: u8 = 16;
const PRIMARY_USER_ID: u8 = 25;
const KEY_FLAGS: u8 = 27;
const EMBEDDED: u8 = 32;
const FINGERPRINT: u8 = 33;

/// Others that change nothing here, even if they are critical: what GnuPG handles too.
const HARMLESS: [u8; 15] = [4, 5, 6, 7, 11, 21, 22, 23, 24, 26, 28, 29, 30, 31, 34];

/// A signature, which is checked by a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(super) kind: u8,
    /// Of the key.
    pub(super) algorithm: u8,
    pub(super) hash: u8,
    /// All that is signed of the signature itself.
    hashed: Vec<u8>,
    /// The numbers that are the signature proper.
    pub(super) values: Vec<u8>,
    pub(super) says: Statements,
}

/// What a signature says: what is signed of it, and which key it is by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Statements {
    /// Seconds since 1970.
    pub(super) created: Option<u64>,
    /// Seconds from then on, if that is limited.
    lifetime: Option<u64>,
    /// Seconds for which a key is valid from its own creation.
    pub(super) key_lifetime: Option<u64>,
    flags: Option<u8>,
    pub(super) is_primary_user: bool,
    pub(super) issuer: Option<[u8; 8]>,
    pub(super) fingerprint: Option<[u8; 20]>,
    /// By a subkey: that it is the primary key's.
    pub(super) embedded: Option<Box<Signature>>,
    /// Whether it says something that must be understood, and is not.
    has_unknown: bool,
}

impl Signature {
    /// Parses a packet's body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, &'static str> {
        Self::parse_within(body, false)
    }

    /// Parses a signature; of one that is embedded in another, none that is in it.
    fn parse_within(body: &[u8], is_embedded: bool) -> Result<Self, &'static str> {
        let mut fields = Fields::new(body);
        if fields.u8()? != 4 {
            return Err("it is a signature of another version than 4");
        }
        let (kind, algorithm, hash) = (fields.u8()?, fields.u8()?, fields.u8()?);
        let mut says = Statements::default();
        let length = fields.u16()?;
        let area = fields.take(usize::from(length))?;
        says.read(area, true, is_embedded)?;
        let hashed = body.get(..6 + area.len()).unwrap_or_default().to_vec();
        let length = fields.u16()?;
        says.read(fields.take(usize::from(length))?, false, is_embedded)?;
        // A hint of the digest, which no key has signed.
        fields.take(2)?;
        Ok(Self {
            kind,
            algorithm,
            hash,
            hashed,
            values: fields.rest().to_vec(),
            says,
        })
    }

    /// Returns what is hashed behind the signed data (RFC 9580, section 5.2.4).
    pub(super) fn trailer(&self) -> Vec<u8> {
        // The length of two octets of length, and of six more.
        let length = u32::try_from(self.hashed.len()).unwrap_or(u32::MAX);
        [&self.hashed[..], &[4, 0xff], &length.to_be_bytes()].concat()
    }

    /// Returns whether it can be relied on: whether all of it is understood.
    pub(super) fn is_understood(&self) -> bool {
        self.says.created.is_some() && !self.says.has_unknown
    }

    pub(super) fn created(&self) -> u64 {
        self.says.created.unwrap_or_default()
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        let lifetime = self.says.lifetime.filter(|lifetime| *lifetime > 0);
        lifetime.is_some_and(|lifetime| now >= self.created().saturating_add(lifetime))
    }

    /// Returns whether it lets its key sign data; none if it does not say.
    pub(super) fn lets_sign(&self) -> Option<bool> {
        self.says.flags.map(|flags| flags & SIGNS != 0)
    }

    /// Returns whether it says that it is by a key.
    pub(super) fn is_by(&self, fingerprint: &[u8; 20]) -> bool {
        let says = &self.says;
        let is_its_id = |id: &[u8; 8]| fingerprint.ends_with(id);
        (says.issuer.is_some() || says.fingerprint.is_some())
            && says.issuer.as_ref().is_none_or(is_its_id)
            && says.fingerprint.is_none_or(|said| said == *fingerprint)
    }

    /// Returns the name that it has for its key, in hexadecimal digits.
    pub(super) fn issuer(&self) -> Option<String> {
        let fingerprint = self.says.fingerprint.as_ref().map(|it| hex(it));
        fingerprint.or_else(|| self.says.issuer.as_ref().map(|id| hex(id)))
    }
}

/// Returns bytes as GnuPG prints fingerprints.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

impl Statements {
    /// Reads the subpackets of an area. Of what is not signed only what is checked by other means.
    fn read(
        &mut self,
        area: &[u8],
        is_signed: bool,
        is_embedded: bool,
    ) -> Result<(), &'static str> {
        let mut fields = Fields::new(area);
        while !fields.is_empty() {
            let length = match fields.u8()? {
                255 => usize::try_from(fields.u32()?).map_err(|_| "a subpacket ends early")?,
                first @ 192.. => two_octets(first, fields.u8()?),
                first => usize::from(first),
            };
            let mut subpacket = Fields::new(fields.take(length)?);
            let first = subpacket.u8()?;
            let (is_critical, kind) = (first & 0x80 != 0, first & 0x7f);
            // Of several the first counts, as GnuPG has it.
            match kind {
                CREATED if is_signed => {
                    self.created.get_or_insert(subpacket.u32()?.into());
                }
                EXPIRES if is_signed => {
                    self.lifetime.get_or_insert(subpacket.u32()?.into());
                }
                KEY_EXPIRES if is_signed => {
                    self.key_lifetime.get_or_insert(subpacket.u32()?.into());
                }
                KEY_FLAGS if is_signed => {
                    self.flags.get_or_insert(subpacket.u8().unwrap_or(0));
                }
                PRIMARY_USER_ID if is_signed => self.is_primary_user |= subpacket.u8()? != 0,
                ISSUER => {
                    self.issuer.get_or_insert(subpacket.array()?);
                }
                FINGERPRINT if subpacket.u8()? == 4 => {
                    self.fingerprint.get_or_insert(subpacket.array()?);
                }
                EMBEDDED if !is_embedded && self.embedded.is_none() => {
                    let signature = Signature::parse_within(subpacket.rest(), true);
                    self.embedded = signature.ok().map(Box::new);
                }
                CREATED | EXPIRES | KEY_EXPIRES | KEY_FLAGS | PRIMARY_USER_ID | EMBEDDED => {}
                other => self.has_unknown |= is_signed && is_critical && !HARMLESS.contains(&other),
            }
        }
        Ok(())
    }
}
