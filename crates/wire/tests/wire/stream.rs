//! Messages over a stream: every message survives, and no input does harm.

use std::io::Cursor;

use micabox_wire::{
    Decoder, Error, MAX_DATA, Message, OutputStream, ToGuest, ToHost, VERSION, encode,
    encode_output, preamble, read_message, write_message,
};
use proptest::prelude::*;

use crate::messages::{to_guest, to_host};

/// Decodes a stream that arrives in pieces of `piece` bytes.
fn decode_in_pieces<M: Message>(stream: &[u8], piece: usize) -> Result<Vec<M>, Error> {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for bytes in stream.chunks(piece) {
        decoder.push(bytes);
        while let Some(message) = decoder.next_message()? {
            messages.push(message);
        }
    }
    assert!(decoder.at_boundary());
    Ok(messages)
}

/// Decodes until the stream ends or is malformed. Must terminate.
fn decode_anything<M: Message>(stream: &[u8], piece: usize) {
    let mut decoder = Decoder::<M>::new();
    'stream: for bytes in stream.chunks(piece) {
        decoder.push(bytes);
        loop {
            match decoder.next_message() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    let mut reader = Cursor::new(stream);
    while let Ok(Some(_)) = read_message::<M>(&mut reader) {}
}

#[test]
fn output_is_encoded_from_where_it_is_and_lengths_without_encoding() {
    for length in [0, 1, 200, MAX_DATA] {
        let (id, stream, data) = (300, OutputStream::Stderr, vec![7; length]);
        let (mut expected, mut found) = (vec![1], vec![1]);
        encode_output(id, stream, &data, &mut found).unwrap();
        encode(&ToHost::Output { id, stream, data }, &mut expected).unwrap();
        assert_eq!(found, expected);
    }
    let stdin = |length: usize| ToGuest::Stdin {
        id: 1,
        data: vec![0; length],
    };
    for (length, fits) in [(ToGuest::MAX_FRAME - 6, true), (ToGuest::MAX_FRAME, false)] {
        let message = stdin(length);
        assert_eq!(message.check_length().is_ok(), fits);
        assert_eq!(encode(&message, &mut Vec::new()).is_ok(), fits);
    }
}

proptest! {
    #[test]
    fn messages_to_the_guest_round_trip(
        messages in prop::collection::vec(to_guest(), 1..8),
        piece in 1..200_usize,
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            encode(message, &mut stream).unwrap();
        }
        prop_assert_eq!(decode_in_pieces::<ToGuest>(&stream, piece).unwrap(), messages);
    }

    #[test]
    fn messages_to_the_host_round_trip(
        messages in prop::collection::vec(to_host(), 1..8),
        piece in 1..200_usize,
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            write_message(&mut stream, message).unwrap();
        }
        prop_assert_eq!(&decode_in_pieces::<ToHost>(&stream, piece).unwrap(), &messages);
        let mut reader = Cursor::new(stream);
        for message in messages {
            prop_assert_eq!(read_message::<ToHost>(&mut reader).unwrap(), Some(message));
        }
        prop_assert_eq!(read_message::<ToHost>(&mut reader).unwrap(), None);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        stream in prop::collection::vec(any::<u8>(), 0..2000),
        piece in 1..64_usize,
    ) {
        decode_anything::<ToHost>(&stream, piece);
        decode_anything::<ToGuest>(&stream, piece);
    }

    /// Random bytes seldom have a valid header: these always do.
    #[test]
    fn arbitrary_frames_do_no_harm(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..10),
        piece in 1..64_usize,
    ) {
        let mut stream = Vec::new();
        for frame in frames {
            stream.extend((frame.len() as u32).to_le_bytes());
            stream.extend(frame);
        }
        decode_anything::<ToHost>(&stream, piece);
        decode_anything::<ToGuest>(&stream, piece);
    }

    #[test]
    fn altered_messages_do_no_harm(
        message in to_host(),
        position in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let mut stream = Vec::new();
        encode(&message, &mut stream).unwrap();
        let position = position.index(stream.len());
        stream[position] ^= 1 << bit;
        decode_anything::<ToHost>(&stream, 4096);
        decode_anything::<ToGuest>(&stream, 4096);
    }

    #[test]
    fn a_truncated_message_is_an_error(message in to_host(), cut in any::<prop::sample::Index>()) {
        let mut stream = Vec::new();
        encode(&message, &mut stream).unwrap();
        stream.truncate(cut.index(stream.len()));
        let mut decoder = Decoder::<ToHost>::new();
        decoder.push(&stream);
        prop_assert_eq!(decoder.next_message().unwrap(), None);
        prop_assert_eq!(decoder.at_boundary(), stream.is_empty());
        match read_message::<ToHost>(&mut Cursor::new(&stream)) {
            Ok(None) => prop_assert!(stream.is_empty()),
            Err(Error::Truncated) => prop_assert!(!stream.is_empty()),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn a_frame_length_is_refused_before_anything_is_allocated() {
    for length in [ToHost::MAX_FRAME as u32 + 1, u32::MAX] {
        let mut decoder = Decoder::<ToHost>::new();
        decoder.push(&length.to_le_bytes());
        assert!(matches!(decoder.next_message(), Err(Error::TooLong { .. })));
        let mut reader = Cursor::new(length.to_le_bytes());
        assert!(matches!(
            read_message::<ToHost>(&mut reader),
            Err(Error::TooLong { .. })
        ));
    }
}

#[test]
fn a_count_inside_a_message_allocates_nothing() {
    // Output{id: 0, stream: Stdout, data: 2^32-1 bytes} in a frame of ten bytes.
    let frame = [5, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2];
    let mut decoder = Decoder::<ToHost>::new();
    decoder.push(&(frame.len() as u32).to_le_bytes());
    decoder.push(&frame);
    assert!(matches!(decoder.next_message(), Err(Error::Malformed(_))));
}

#[test]
fn a_frame_holds_exactly_one_message() {
    let mut stream = Vec::new();
    encode(&ToHost::ShutdownDone { problem: None }, &mut stream).unwrap();
    stream.push(0);
    stream[0] += 1;
    assert!(matches!(
        read_message::<ToHost>(&mut Cursor::new(stream)),
        Err(Error::Malformed("bytes after the message"))
    ));
    assert!(matches!(
        read_message::<ToHost>(&mut Cursor::new([0; 4])),
        Err(Error::Malformed("it ends early"))
    ));
}

#[test]
fn a_message_that_is_too_long_is_not_sent() {
    let mut stream = b"before".to_vec();
    let message = ToHost::Output {
        id: 1,
        stream: OutputStream::Stdout,
        data: vec![0; ToHost::MAX_FRAME],
    };
    assert!(matches!(
        encode(&message, &mut stream),
        Err(Error::TooLong { .. })
    ));
    assert_eq!(stream, b"before");
}

#[test]
fn the_largest_piece_of_data_fits() {
    let message = ToHost::Output {
        id: u32::MAX,
        stream: OutputStream::Stderr,
        data: vec![0xff; MAX_DATA],
    };
    let mut stream = Vec::new();
    encode(&message, &mut stream).unwrap();
    assert_eq!(
        read_message::<ToHost>(&mut Cursor::new(stream)).unwrap(),
        Some(message)
    );
}

/// The preamble's format is the same in all versions, so it is spelt out here.
#[test]
fn the_preamble_tells_versions_and_strangers_apart() {
    let mut bytes = *b"MICABOX\n\0\0\0\0";
    bytes[8] = u8::try_from(VERSION).unwrap();
    assert_eq!(preamble::encode(), bytes);
    preamble::check(&bytes).unwrap();
    bytes[9] = 1;
    let error = preamble::check(&bytes).unwrap_err();
    assert!(
        matches!(error, Error::Version { theirs, ours: VERSION } if theirs == VERSION + 256),
        "{error}"
    );
    bytes[0] = b'm';
    assert!(matches!(preamble::check(&bytes), Err(Error::NotAnAgent)));
    let mut short = Cursor::new(&bytes[..5]);
    assert!(matches!(preamble::read(&mut short), Err(Error::Truncated)));
}
