//! Signed messages: a document and a signature over it, as GnuPG writes them with `--sign` (RFC 9580, section 10.3).

use std::io::{self, Read};

use flate2::bufread::{DeflateDecoder, ZlibDecoder};

use super::packet::{
    COMPRESSED, Fields, LITERAL, MARKER, ONE_PASS_SIGNATURE, PADDING, Packet, Packets, SIGNATURE,
};
use super::signature::{Signature, kind};

/// Most bytes of a message, and of what it is once it is decompressed.
pub(crate) const LARGEST: usize = 64 << 10;

/// Algorithms of compression (RFC 9580, section 9.4).
const NOT_COMPRESSED: u8 = 0;
const ZIP: u8 = 1;
const ZLIB: u8 = 2;

/// A document with a signature over it, which no key has checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) document: Vec<u8>,
    pub(super) signature: Signature,
}

impl Message {
    /// Parses a message with one document and one signature.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > LARGEST {
            return Err("it is too long");
        }
        let packets = packets(bytes)?;
        match &packets[..] {
            [packet] if packet.tag == COMPRESSED => {
                Self::of(&self::packets(&decompressed(&packet.body)?)?)
            }
            packets => Self::of(packets),
        }
    }

    fn of(packets: &[Packet<'_>]) -> Result<Self, &'static str> {
        let (one_pass, literal, signature) = match packets {
            [first, literal, signature]
                if (first.tag, literal.tag, signature.tag)
                    == (ONE_PASS_SIGNATURE, LITERAL, SIGNATURE) =>
            {
                (Some(first), literal, signature)
            }
            [signature, literal] if (signature.tag, literal.tag) == (SIGNATURE, LITERAL) => {
                (None, literal, signature)
            }
            other => return Err(what_else(other)),
        };
        let signature = Signature::parse(&signature.body)?;
        if let Some(one_pass) = one_pass {
            check_one_pass(&one_pass.body, &signature)?;
        }
        match signature.kind {
            kind::DOCUMENT => {}
            kind::TEXT => return Err("it is a signature of text, whose line ends may be others"),
            _ => return Err("it is no signature of a document"),
        }
        if !signature.is_understood() {
            return Err("it says something that must be understood, and is not, or no time");
        }
        let mut fields = Fields::new(&literal.body);
        // Its format, a file's name and a time, which no key has signed.
        fields.u8()?;
        let name = fields.u8()?;
        fields.take(usize::from(name))?;
        fields.u32()?;
        Ok(Self {
            document: fields.rest().to_vec(),
            signature,
        })
    }

    /// Returns the name that the signature has for its key.
    pub(crate) fn issuer(&self) -> Option<String> {
        self.signature.issuer()
    }
}

/// Returns all packets but those that mean nothing.
fn packets(bytes: &[u8]) -> Result<Vec<Packet<'_>>, &'static str> {
    let means_nothing = |read: &Result<Packet<'_>, _>| {
        matches!(
            read,
            Ok(Packet {
                tag: MARKER | PADDING,
                ..
            })
        )
    };
    // More than a message has are counted as such.
    let packets = Packets::new(bytes).filter(|read| !means_nothing(read));
    packets.take(8).collect()
}

/// Says what packets are that are no message with one signature.
fn what_else(packets: &[Packet<'_>]) -> &'static str {
    let count = |tag| packets.iter().filter(|packet| packet.tag == tag).count();
    if packets
        .iter()
        .any(|packet| matches!(packet.tag, 1 | 3 | 9 | 18 | 20))
    {
        "it is encrypted"
    } else if count(COMPRESSED) > 0 {
        "it is compressed more than once, or has more behind what is compressed"
    } else if count(SIGNATURE) > 1 || count(ONE_PASS_SIGNATURE) > 1 {
        "it has several signatures"
    } else if count(LITERAL) > 1 {
        "it has several documents"
    } else if count(SIGNATURE) == 0 {
        "it has no signature"
    } else {
        "it is no message of a document and its signature"
    }
}

/// Checks that what stands before a document about its signature is true (RFC 9580, section 5.4).
fn check_one_pass(body: &[u8], signature: &Signature) -> Result<(), &'static str> {
    let mut fields = Fields::new(body);
    let version = fields.u8()?;
    let stated = (fields.u8()?, fields.u8()?, fields.u8()?);
    let issuer: [u8; 8] = fields.array()?;
    let is_last = fields.u8()?;
    let is_true = version == 3
        && stated == (signature.kind, signature.hash, signature.algorithm)
        && signature.says.issuer.is_none_or(|said| said == issuer)
        && is_last == 1
        && fields.is_empty();
    if is_true {
        Ok(())
    } else {
        Err("what stands before the document is about another signature")
    }
}

fn decompressed(body: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut fields = Fields::new(body);
    let algorithm = fields.u8()?;
    let compressed = fields.rest();
    match algorithm {
        NOT_COMPRESSED => Ok(compressed.to_vec()),
        ZIP => {
            let mut decoder = DeflateDecoder::new(compressed);
            let bytes = read(&mut decoder)?;
            all(bytes, decoder.into_inner())
        }
        ZLIB => {
            let mut decoder = ZlibDecoder::new(compressed);
            let bytes = read(&mut decoder)?;
            all(bytes, decoder.into_inner())
        }
        3 => Err("it is compressed with bzip2, which is not supported"),
        _ => Err("it is compressed in an unknown way"),
    }
}

fn read(decoder: impl Read) -> Result<Vec<u8>, &'static str> {
    let mut bytes = Vec::new();
    let decoded: io::Result<_> = decoder.take(LARGEST as u64 + 1).read_to_end(&mut bytes);
    match decoded {
        Ok(_) if bytes.len() > LARGEST => Err("what is compressed in it is too long"),
        Ok(_) => Ok(bytes),
        Err(_) => Err("what is compressed in it is damaged"),
    }
}

fn all(bytes: Vec<u8>, behind: &[u8]) -> Result<Vec<u8>, &'static str> {
    if behind.is_empty() {
        Ok(bytes)
    } else {
        Err("it has more behind what is compressed")
    }
}
