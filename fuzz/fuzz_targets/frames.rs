//! A guest's frames: ethernet, ARP, IP, ICMP, UDP, DNS, TCP.

#![no_main]

use micabox_fuzz::frames;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(frames::seeds()),
    |data: &[u8]| frames::frames(data)
);
