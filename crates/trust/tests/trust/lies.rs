//! OpenPGP keys and messages in which one thing is not as it should be. GnuPG decides about each.

use std::io::Write as _;
use std::slice::from_ref;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use micabox_testing::Gpg;
use micabox_trust::Signer;

use crate::forge::{
    BACK, BINDING, CERTIFICATION, DOCUMENT, Key, Message, Plan, Published, REVOCATION,
    SUBKEY_REVOCATION, USER, USER_REVOCATION, packet,
};
use crate::judge;
use crate::openpgp::{
    Gnupg, Refuses, Takes, assert_all, assert_refused, assert_signed, by, check, document, now,
    refused, signed,
};

/// A case: its name, what is signed or the key, a part of why it is refused, and what GnuPG does.
type Refusal = (&'static str, Vec<u8>, &'static str, Gnupg);

fn seconds(seconds: u32) -> Vec<u8> {
    seconds.to_be_bytes().to_vec()
}

fn damaged(mut body: Vec<u8>) -> Vec<u8> {
    *body.last_mut().unwrap() ^= 1;
    body
}

/// A key, and a message that it has signed.
struct Honest {
    key: Key,
    keys: Vec<u8>,
    plan: Plan,
    message: Message,
}

impl Honest {
    fn new() -> Self {
        let key = Key::new(1, now() - 1000);
        let keys = Published::new(&key).bytes();
        let plan = key.plan(DOCUMENT, now() - 100);
        let message = Message::of(&key, &plan, &document());
        Self {
            key,
            keys,
            plan,
            message,
        }
    }

    /// Signs something else.
    fn signs(&self, edit: impl FnOnce(&mut Plan)) -> Vec<u8> {
        let mut plan = self.plan.clone();
        edit(&mut plan);
        Message::of(&self.key, &plan, &document()).bytes()
    }

    /// Changes what was signed.
    fn edited(&self, edit: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = self.message.clone();
        edit(&mut message);
        message.bytes()
    }

    fn one_pass(&self, at: usize, byte: u8) -> Vec<u8> {
        self.edited(|message| message.one_pass.as_mut().unwrap()[at] ^= byte)
    }

    fn assert_refused<const N: usize>(&self, cases: [Refusal; N]) {
        assert_all(
            cases.map(|(name, message, part, gnupg)| {
                refused(name, &self.keys, &message, part, gnupg)
            }),
        );
    }
}

#[test]
fn what_no_key_signs_of_a_message_may_be_anything() {
    let it = Honest::new();
    let bytes = it.message.bytes();
    let (signature, literal) = (&it.message.signature, &it.message.literal);
    let old_order = [packet(2, signature), packet(11, literal)].concat();
    let marked = [packet(10, b"PGP"), bytes.clone()].concat();
    let named = it.edited(|it| it.literal.splice(1..2, [1, b'x']).for_each(drop));
    let unsigned_end = it.signs(|plan| plan.unhashed.push((3, seconds(1))));
    for (name, message) in [
        ("as it should be", bytes),
        ("the signature first", old_order),
        ("a marker", marked),
        ("a file's name", named),
        ("an end that is not signed", unsigned_end),
        ("no end", it.signs(|plan| plan.hashed.push((3, seconds(0))))),
        ("unknown", it.signs(|plan| plan.hashed.push((100, vec![1])))),
        ("SHA-512", it.signs(|plan| plan.hash = 10)),
    ] {
        assert_signed(name, &it.keys, &message);
    }
}

#[test]
fn a_signature_whose_fields_lie_is_refused() {
    let it = Honest::new();
    let before = seconds(it.key.created - 1);
    let unsigned_time = it.signs(|plan| plan.unhashed.extend(plan.hashed.pop()));
    let nobodys = it.signs(|plan| {
        plan.hashed.remove(0);
        plan.unhashed.clear();
    });
    let anothers = it.signs(|plan| {
        plan.hashed.remove(0);
        plan.unhashed[0].1[0] ^= 1;
    });
    let critical = it.signs(|plan| plan.hashed.push((0x80 | 100, vec![1])));
    let notation = it.signs(|plan| plan.hashed.push((0x80 | 20, vec![0; 8])));
    let other = "something else";
    it.assert_refused([
        (
            "document",
            it.edited(|it| it.literal[8] ^= 1),
            other,
            Refuses,
        ),
        (
            "numbers",
            it.edited(|it| it.signature = damaged(it.signature.clone())),
            other,
            Refuses,
        ),
        (
            "time",
            it.edited(|it| it.signature[32] ^= 1),
            other,
            Refuses,
        ),
        ("digest", it.signs(|plan| plan.hash = 9), other, Refuses),
        (
            "kind",
            it.signs(|plan| plan.kind = 0x10),
            "no signature of a document",
            Refuses,
        ),
        (
            "text",
            it.signs(|plan| plan.kind = 1),
            "signature of text",
            Takes,
        ),
        (
            "algorithm",
            it.signs(|plan| plan.algorithm = 1),
            "another algorithm",
            Refuses,
        ),
        (
            "version",
            it.signs(|plan| plan.version = 3),
            "another version",
            Refuses,
        ),
        (
            "weak",
            it.signs(|plan| plan.hash = 2),
            "digest of SHA-1",
            Takes,
        ),
        (
            "no time",
            it.signs(|plan| plan.hashed.truncate(1)),
            "or no time",
            Refuses,
        ),
        (
            "a time that is not signed",
            unsigned_time,
            "or no time",
            Refuses,
        ),
        (
            "too old",
            it.signs(|plan| plan.hashed[1].1 = before),
            "is newer than that",
            Refuses,
        ),
        (
            "expired",
            it.signs(|plan| plan.hashed.push((3, seconds(10)))),
            "has expired",
            Refuses,
        ),
        ("critical", critical, "understood", Refuses),
        ("a critical notation", notation, "understood", Refuses),
        ("no key", nobodys, "which key it is by", Refuses),
        ("another key", anothers, "before the document", Refuses),
    ]);
}

#[test]
fn a_message_that_is_not_one_document_and_its_signature_is_refused() {
    let it = Honest::new();
    let bytes = it.message.bytes();
    let literal = packet(11, &it.message.literal);
    let before = "before the document";
    let with = |more: &[u8]| [&bytes[..], more].concat();
    let cut = bytes[..bytes.len() - 1].to_vec();
    it.assert_refused([
        ("version", it.one_pass(0, 1), before, Refuses),
        ("kind", it.one_pass(1, 1), before, Takes),
        ("hash", it.one_pass(2, 2), before, Refuses),
        ("algorithm", it.one_pass(3, 1), before, Takes),
        ("key", it.one_pass(4, 1), before, Takes),
        ("more follow", it.one_pass(12, 1), before, Takes),
        ("two", with(&bytes), "several signatures", Refuses),
        (
            "two documents",
            [&literal[..], &bytes].concat(),
            "several documents",
            Refuses,
        ),
        ("more", with(&packet(13, b"x")), "no message of a", Takes),
        ("garbage", with(&[0]), "not made of packets", Takes),
        ("unsigned", literal.clone(), "no signature", Refuses),
        ("encrypted", packet(18, &bytes), "encrypted", Refuses),
        ("cut", cut, "ends early", Refuses),
        ("nothing", Vec::new(), "no signature", Refuses),
    ]);
}

#[test]
fn compression_of_a_message_is_bounded() {
    let it = Honest::new();
    let deflated = |bytes: &[u8]| {
        let mut encoder = DeflateEncoder::new(vec![1], Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let once = deflated(&it.message.bytes());
    let more = [&once[..], &[0]].concat();
    let twice = deflated(&packet(8, &once));
    let bomb = deflated(&packet(11, &vec![0; 1 << 20]));
    let longer = [document(), vec![b' '; 70 << 10]].concat();
    let longer = Message::of(&it.key, &it.plan, &longer).bytes();
    assert_signed("once", &it.keys, &packet(8, &once));
    it.assert_refused([
        (
            "twice",
            packet(8, &twice),
            "compressed more than once",
            Takes,
        ),
        ("a bomb", packet(8, &bomb), "too long", Refuses),
        (
            "damaged",
            packet(8, &[1, 0xff, 0xff]),
            "compressed in it is damaged",
            Refuses,
        ),
        ("unknown", packet(8, &[9, 0]), "in an unknown way", Refuses),
        ("more", packet(8, &more), "has more behind", Takes),
        ("long", longer.clone(), "it is too long", Takes),
        (
            "long, once it is inflated",
            packet(8, &deflated(&longer)),
            "is too long",
            Takes,
        ),
    ]);
}

/// A key whose parts can be others, and a message that it has signed.
struct Owner {
    key: Key,
    other: Key,
    created: u32,
    message: Vec<u8>,
}

impl Owner {
    fn new() -> Self {
        let created = now() - 1000;
        let (key, other) = (Key::new(1, created), Key::new(2, created));
        let plan = key.plan(DOCUMENT, now() - 100);
        let message = Message::of(&key, &plan, &document()).bytes();
        Self {
            key,
            other,
            created,
            message,
        }
    }

    /// Makes a signature about the user ID, `at` seconds after the key was made.
    fn certified(&self, by: &Key, at: u32, edit: impl FnOnce(&mut Plan)) -> Vec<u8> {
        let mut plan = by.plan(CERTIFICATION, self.created + at);
        plan.hashed.push((27, vec![3]));
        edit(&mut plan);
        by.sign(&plan, &Published::user(&self.key))
    }

    fn good(&self, at: u32) -> Vec<u8> {
        self.certified(&self.key, at, |_| {})
    }

    fn expiring(&self, at: u32) -> Vec<u8> {
        self.certified(&self.key, at, |plan| plan.hashed.push((9, seconds(500))))
    }

    fn user_revoked(&self, at: u32) -> Vec<u8> {
        let plan = self.key.plan(USER_REVOCATION, self.created + at);
        self.key.sign(&plan, &Published::user(&self.key))
    }

    /// Returns the key with these signatures about the user ID.
    fn with<const N: usize>(&self, about_user: [Vec<u8>; N]) -> Vec<u8> {
        Published {
            about_user: about_user.to_vec(),
            ..Published::new(&self.key)
        }
        .bytes()
    }

    /// Returns the key with one signature about itself.
    fn revoked(&self, by: &Key, at: u32, edit: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
        let plan = by.plan(REVOCATION, at);
        Published {
            direct: vec![edit(by.sign(&plan, &self.key.hashed()))],
            ..Published::new(&self.key)
        }
        .bytes()
    }
}

#[test]
fn of_what_a_key_says_of_itself_the_newest_counts() {
    let it = Owner::new();
    let (key, other) = (&it.key, &it.other);
    let sha1 = it.certified(key, 0, |plan| plan.hash = 2);
    let others = [it.certified(other, 0, |_| {}), it.good(0)];
    let cases = [
        ("as it should be", it.with([it.good(0)])),
        ("signed by another too", it.with(others)),
        ("prolonged", it.with([it.expiring(0), it.good(1)])),
        (
            "certified after a revocation",
            it.with([it.user_revoked(0), it.good(1)]),
        ),
        (
            "a revocation that it has not signed",
            it.revoked(key, now(), damaged),
        ),
        ("SHA-1", it.with([sha1])),
    ];
    assert_all(cases.map(|(name, keys)| signed(name, &keys, &it.message)));
}

#[test]
fn a_key_that_is_not_its_owners_any_more_is_refused() {
    let it = Owner::new();
    let (key, other) = (&it.key, &it.other);
    let critical = it.certified(key, 0, |plan| plan.hashed.push((0x80 | 100, vec![])));
    let early = seconds(it.created - 1);
    let early = it.certified(key, 0, |plan| plan.hashed[1].1 = early);
    let over = it.certified(key, 0, |plan| plan.hashed.push((3, seconds(10))));
    let certifies = it.certified(key, 0, |plan| plan.hashed[2].1 = vec![1]);
    let nobodys = "no user ID of its own";
    let (same, tomorrow) = (|body| body, now() + 100_000);
    let cases = [
        (
            "signed by another",
            it.with([it.certified(other, 0, |_| {})]),
            nobodys,
            Refuses,
        ),
        ("not signed", it.with([]), nobodys, Refuses),
        ("damaged", it.with([damaged(it.good(0))]), nobodys, Refuses),
        ("critical", it.with([critical]), nobodys, Refuses),
        (
            "signed before it was made",
            it.with([early]),
            nobodys,
            Refuses,
        ),
        (
            "a signature that has expired",
            it.with([over]),
            nobodys,
            Takes,
        ),
        (
            "for certificates only",
            it.with([certifies]),
            "not for signing",
            Refuses,
        ),
        ("expired", it.with([it.expiring(0)]), "has expired", Refuses),
        (
            "shortened",
            it.with([it.expiring(1), it.good(0)]),
            "has expired",
            Refuses,
        ),
        (
            "a user that is revoked",
            it.with([it.good(0), it.user_revoked(1)]),
            nobodys,
            Takes,
        ),
        (
            "revoked",
            it.revoked(key, now(), same),
            "is revoked",
            Refuses,
        ),
        (
            "revoked tomorrow",
            it.revoked(key, tomorrow, same),
            "is revoked",
            Refuses,
        ),
        // It may be one that the owner has appointed.
        (
            "revoked by another",
            it.revoked(other, now(), same),
            "is revoked",
            Takes,
        ),
    ];
    assert_all(
        cases.map(|(name, keys, part, gnupg)| refused(name, &keys, &it.message, part, gnupg)),
    );
    let late = Key::new(1, tomorrow);
    let message = Message::of(&late, &late.plan(DOCUMENT, tomorrow + 1), &document());
    let keys = Published::new(&late).bytes();
    assert_refused(
        "of tomorrow",
        &keys,
        &message.bytes(),
        "newer than that",
        Refuses,
    );
}

#[test]
fn a_subkey_signs_that_both_keys_have_said_is_one() {
    let Owner {
        key,
        other: subkey,
        created,
        ..
    } = Owner::new();
    let other = Key::new(3, created);
    let both = Published::both(&key, &subkey);
    let bind = |by: &Key| by.sign(&Published::binding(by, &subkey), &both);
    let of = |about_subkey: Vec<Vec<u8>>| {
        Published {
            subkey: Some(&subkey),
            about_subkey,
            ..Published::new(&key)
        }
        .bytes()
    };
    let with = |edit: &dyn Fn(&mut Plan)| {
        let mut plan = Published::binding(&key, &subkey);
        edit(&mut plan);
        of(vec![key.sign(&plan, &both)])
    };
    let back = |by: &Key, kind: u8, signed: &[u8]| {
        let back = by.sign(&by.plan(kind, created), signed);
        with(&move |plan| plan.unhashed[1].1.clone_from(&back))
    };
    let plan = subkey.plan(DOCUMENT, now() - 100);
    let message = Message::of(&subkey, &plan, &document()).bytes();
    let hashed = with(&|plan| plan.hashed.extend(plan.unhashed.pop()));
    assert_signed("as it should be", &with(&|_| {}), &message);
    assert_signed("what the subkey signed is signed too", &hashed, &message);

    let revoking = key.sign(&key.plan(SUBKEY_REVOCATION, created), &both);
    let elsewhere = key.sign(&Published::binding(&key, &subkey), &key.hashed());
    let over = with(&|plan| plan.hashed.push((3, seconds(10))));
    let (unbound, not_agreed) = ("is not bound", "has not signed that it is one");
    let others = back(&subkey, BACK, &Published::both(&other, &subkey));
    let cases = [
        ("not bound", of(vec![]), unbound, Refuses),
        ("bound by another", of(vec![bind(&other)]), unbound, Refuses),
        ("bound to another", of(vec![elsewhere]), unbound, Refuses),
        ("a binding that has expired", over, unbound, Refuses),
        (
            "taken",
            with(&|plan| drop(plan.unhashed.pop())),
            not_agreed,
            Refuses,
        ),
        (
            "agreed by another",
            back(&other, BACK, &both),
            not_agreed,
            Refuses,
        ),
        (
            "agreed by the key",
            back(&key, BACK, &both),
            not_agreed,
            Refuses,
        ),
        (
            "agreed to something else",
            back(&subkey, BINDING, &both),
            not_agreed,
            Refuses,
        ),
        ("agreed to another key", others, not_agreed, Refuses),
        (
            "for encryption",
            with(&|plan| plan.hashed[2].1 = vec![12]),
            "not for signing",
            Refuses,
        ),
        (
            "expired",
            with(&|plan| plan.hashed.push((9, seconds(10)))),
            "has expired",
            Refuses,
        ),
        (
            "revoked",
            of(vec![bind(&key), revoking]),
            "is revoked",
            Refuses,
        ),
    ];
    assert_all(cases.map(|(name, keys, part, gnupg)| refused(name, &keys, &message, part, gnupg)));

    // What belongs to a key that is passed over is not the one's before.
    let third = [
        packet(6, &[3, 0, 0]),
        packet(14, &subkey.body()),
        packet(2, &bind(&key)),
    ];
    let keys = [Published::new(&key).bytes(), third.concat()].concat();
    let problem = check(&by(&keys), &[message]).unwrap_err();
    assert!(problem.contains("does not have"), "{problem}");
}

#[test]
fn no_damage_to_a_message_or_a_key_makes_it_say_something_else() {
    let gpg = Gpg::new();
    let fingerprint = gpg.key(USER, "ed25519", &[]);
    gpg.run(
        &["--quick-add-key", &fingerprint, "ed25519", "sign", "never"],
        b"",
    );
    let (keys, message) = (gpg.export(USER), gpg.sign(&document(), &["-z", "0"]));
    let each_damage = |whole: &[u8]| {
        let whole = whole.to_vec();
        (0..whole.len()).map(move |at| {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            damaged
        })
    };
    let user = USER.to_owned();
    let signers = [Signer::OpenPgp { fingerprint, user }];
    let mut taken = 0;
    for damaged in each_damage(&message) {
        if let Ok(found) = check(&by(&keys), from_ref(&damaged)) {
            assert_eq!(found, signers);
            let (_, signed) = judge::signed(&keys, &damaged).unwrap();
            assert_eq!(signed, document());
            taken += 1;
        }
    }
    // What no key has signed: a file's name, its time, hints.
    assert!(taken > 0);
    for damaged in each_damage(&keys) {
        if let Ok(found) = check(&by(&damaged), from_ref(&message)) {
            assert_eq!(found, signers);
        }
    }
}
