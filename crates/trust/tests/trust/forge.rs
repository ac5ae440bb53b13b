//! Makes OpenPGP keys and messages packet by packet, so that each field can lie.

use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// Types of signatures (RFC 9580, section 5.2.1).
pub const DOCUMENT: u8 = 0x00;
pub const CERTIFICATION: u8 = 0x13;
pub const BINDING: u8 = 0x18;
pub const BACK: u8 = 0x19;
pub const REVOCATION: u8 = 0x20;
pub const SUBKEY_REVOCATION: u8 = 0x28;
pub const USER_REVOCATION: u8 = 0x30;

pub const USER: &str = "Dev <dev@example.com>";

/// A key of Ed25519.
pub struct Key {
    pair: Ed25519KeyPair,
    pub created: u32,
}

/// A signature to be made.
#[derive(Clone)]
pub struct Plan {
    pub version: u8,
    pub kind: u8,
    pub algorithm: u8,
    pub hash: u8,
    /// Subpackets by type; critical ones have 128 more.
    pub hashed: Vec<(u8, Vec<u8>)>,
    pub unhashed: Vec<(u8, Vec<u8>)>,
}

impl Key {
    pub fn new(seed: u8, created: u32) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        Self { pair, created }
    }

    pub fn body(&self) -> Vec<u8> {
        let curve = [9, 0x2b, 6, 1, 4, 1, 0xda, 0x47, 0x0f, 1];
        let point = [&[1, 7, 0x40], self.pair.public_key().as_ref()].concat();
        [&[4][..], &self.created.to_be_bytes(), &[22], &curve, &point].concat()
    }

    pub fn hashed(&self) -> Vec<u8> {
        let body = self.body();
        [&[0x99, 0, u8::try_from(body.len()).unwrap()][..], &body].concat()
    }

    pub fn fingerprint(&self) -> Vec<u8> {
        let digest = digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, &self.hashed());
        digest.as_ref().to_vec()
    }

    pub fn id(&self) -> Vec<u8> {
        self.fingerprint()[12..].to_vec()
    }

    /// Returns a signature as it should be: of a kind, made at a time.
    pub fn plan(&self, kind: u8, created: u32) -> Plan {
        let fingerprint = [&[4], &self.fingerprint()[..]].concat();
        Plan {
            version: 4,
            kind,
            algorithm: 22,
            hash: 8,
            hashed: vec![(33, fingerprint), (2, created.to_be_bytes().to_vec())],
            unhashed: vec![(16, self.id())],
        }
    }

    /// Makes a signature's body over what is signed.
    pub fn sign(&self, plan: &Plan, signed: &[u8]) -> Vec<u8> {
        let area = |subpackets: &[(u8, Vec<u8>)]| {
            let subpacket = |(kind, body): &(u8, Vec<u8>)| {
                let length = u8::try_from(body.len() + 1).unwrap();
                [&[length, *kind][..], body].concat()
            };
            let all: Vec<u8> = subpackets.iter().flat_map(subpacket).collect();
            [&u16::try_from(all.len()).unwrap().to_be_bytes()[..], &all].concat()
        };
        let head = [plan.version, plan.kind, plan.algorithm, plan.hash];
        let hashed = [&head[..], &area(&plan.hashed)].concat();
        let length = u32::try_from(hashed.len()).unwrap().to_be_bytes();
        let all = [signed, &hashed, &[4, 0xff], &length].concat();
        let algorithm = match plan.hash {
            2 => &SHA1_FOR_LEGACY_USE_ONLY,
            10 => &digest::SHA512,
            _ => &SHA256,
        };
        let digest = digest::digest(algorithm, &all);
        let bytes = self.pair.sign(digest.as_ref());
        let (r, s) = bytes.as_ref().split_at(32);
        let hint = &digest.as_ref()[..2];
        [
            &hashed,
            &area(&plan.unhashed)[..],
            hint,
            &number(r),
            &number(s),
        ]
        .concat()
    }
}

/// Returns a number as OpenPGP writes it.
fn number(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let bytes = &bytes[zeros..];
    let bits = bytes.len() * 8
        - bytes
            .first()
            .map_or(0, |first| first.leading_zeros() as usize);
    [&u16::try_from(bits).unwrap().to_be_bytes()[..], bytes].concat()
}

pub fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[0xc0 | tag, 255][..], &length, body].concat()
}

/// A signed message, each part of which can be another.
#[derive(Clone)]
pub struct Message {
    pub one_pass: Option<Vec<u8>>,
    pub literal: Vec<u8>,
    pub signature: Vec<u8>,
}

impl Message {
    /// Returns what a key signs: a document.
    pub fn of(key: &Key, plan: &Plan, document: &[u8]) -> Self {
        let one_pass = [
            &[3, plan.kind, plan.hash, plan.algorithm],
            &key.id()[..],
            &[1],
        ]
        .concat();
        Self {
            one_pass: Some(one_pass),
            literal: [&[b'b', 0, 0, 0, 0, 0][..], document].concat(),
            signature: key.sign(plan, document),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let one_pass = self.one_pass.as_ref().map(|body| packet(4, body));
        let (literal, signature) = (packet(11, &self.literal), packet(2, &self.signature));
        [one_pass.unwrap_or_default(), literal, signature].concat()
    }
}

/// A public key, each part of which can be another.
pub struct Published<'a> {
    pub primary: &'a Key,
    pub subkey: Option<&'a Key>,
    /// Bodies of signatures about the primary key.
    pub direct: Vec<Vec<u8>>,
    pub about_user: Vec<Vec<u8>>,
    pub about_subkey: Vec<Vec<u8>>,
}

impl<'a> Published<'a> {
    /// Returns a key that may sign, without a subkey.
    pub fn new(primary: &'a Key) -> Self {
        let mut plan = primary.plan(CERTIFICATION, primary.created);
        plan.hashed.push((27, vec![3]));
        Self {
            primary,
            subkey: None,
            direct: Vec::new(),
            about_user: vec![primary.sign(&plan, &Self::user(primary))],
            about_subkey: Vec::new(),
        }
    }

    /// Returns what signatures about a user ID sign.
    pub fn user(primary: &Key) -> Vec<u8> {
        let length = u32::try_from(USER.len()).unwrap().to_be_bytes();
        [&primary.hashed(), &[0xb4][..], &length, USER.as_bytes()].concat()
    }

    /// Returns what signatures about a subkey sign.
    pub fn both(primary: &Key, subkey: &Key) -> Vec<u8> {
        [primary.hashed(), subkey.hashed()].concat()
    }

    /// Returns a binding of a subkey that may sign.
    pub fn binding(primary: &Key, subkey: &Key) -> Plan {
        let back = subkey.plan(BACK, subkey.created);
        let back = subkey.sign(&back, &Self::both(primary, subkey));
        let mut plan = primary.plan(BINDING, subkey.created);
        plan.hashed.push((27, vec![2]));
        plan.unhashed.push((32, back));
        plan
    }

    pub fn bytes(&self) -> Vec<u8> {
        let signatures = |all: &[Vec<u8>]| {
            all.iter()
                .flat_map(|body| packet(2, body))
                .collect::<Vec<u8>>()
        };
        let mut bytes = packet(6, &self.primary.body());
        bytes.extend(signatures(&self.direct));
        bytes.extend(packet(13, USER.as_bytes()));
        bytes.extend(signatures(&self.about_user));
        if let Some(subkey) = self.subkey {
            bytes.extend(packet(14, &subkey.body()));
        }
        bytes.extend(signatures(&self.about_subkey));
        bytes
    }
}
