//! Strategies for every message, with arbitrary contents.

use micabox_wire::{
    Boot, BootFailed, BootPart, BootTimings, Confinement, Device, Exec, ExitStatus, Extent, Format,
    Hello, Identity, Init, Lower, Mount, MountSource, MountedDisk, Network, OutputStream, Phase,
    Range, Reattach, Restore, Setup, StartFailed, StartFailure, Tmpfs, ToGuest, ToHost, TtySize,
    Ulimit, Upper,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,20}"
}

fn stream() -> impl Strategy<Value = OutputStream> {
    prop_oneof![Just(OutputStream::Stdout), Just(OutputStream::Stderr)]
}

fn size() -> impl Strategy<Value = TtySize> {
    any::<(u16, u16)>().prop_map(|(rows, columns)| TtySize { rows, columns })
}

fn extent() -> impl Strategy<Value = Extent> {
    let device = prop_oneof![
        any::<[u8; 16]>().prop_map(|uuid| Device::Pmem { uuid }),
        text().prop_map(|serial| Device::Disk { serial }),
        (text(), text(), any::<u64>(), any::<[u8; 32]>()).prop_map(
            |(serial, tree, blocks, root)| Device::Verity {
                serial,
                tree,
                blocks,
                root,
            },
        ),
    ];
    let range = any::<(u64, u64)>().prop_map(|(offset, length)| Range { offset, length });
    (device, option::of(range)).prop_map(|(device, range)| Extent { device, range })
}

fn boot() -> impl Strategy<Value = Boot> {
    let format = prop_oneof![Just(Format::Erofs), Just(Format::Ext4)];
    let lower = (format, extent(), vec(extent(), 0..4));
    let lower = lower.prop_map(|(format, image, devices)| Lower {
        format,
        image,
        devices,
    });
    (
        vec(lower, 0..4),
        prop_oneof![
            (any::<Option<u64>>(), option::of(text())).prop_map(|(size_bytes, patches)| {
                Upper::Tmpfs {
                    size_bytes,
                    patches,
                }
            }),
            text().prop_map(|serial| Upper::Disk { serial }),
            text().prop_map(|serial| Upper::InPlace { serial }),
            text().prop_map(|tag| Upper::Share { tag }),
        ],
        prop_oneof![Just(Init::Reaper), Just(Init::FirstExec)],
        identity(),
        setup(),
    )
        .prop_map(|(lowers, upper, init, identity, setup)| Boot {
            lowers,
            upper,
            init,
            identity,
            setup,
        })
}

fn identity() -> impl Strategy<Value = Identity> {
    (
        text(),
        text(),
        bytes(),
        option::of(network()),
        any::<(i64, u32)>(),
        any::<[u8; 32]>(),
    )
        .prop_map(
            |(hostname, machine_id, resolv_conf, network, wall_clock, entropy)| Identity {
                hostname,
                machine_id,
                resolv_conf,
                network,
                wall_clock,
                entropy,
            },
        )
}

fn setup() -> impl Strategy<Value = Setup> {
    let tmpfs = (
        any::<(Option<u64>, Option<u64>, Option<u32>)>(),
        any::<(u32, u32, bool, bool, bool)>(),
    );
    let tmpfs = tmpfs.prop_map(
        |((size_bytes, inodes, mode), (uid, gid, exec, suid, dev))| {
            MountSource::Tmpfs(Tmpfs {
                size_bytes,
                inodes,
                mode,
                uid,
                gid,
                exec,
                suid,
                dev,
            })
        },
    );
    let format = prop_oneof![Just(Format::Erofs), Just(Format::Ext4)];
    let disk = (text(), format, text(), any::<bool>());
    let disk = disk.prop_map(|(serial, format, directory, is_written)| {
        MountSource::Disk(MountedDisk {
            serial,
            format,
            directory,
            is_written,
        })
    });
    let share = (text(), option::of(text()), text());
    let share = share.prop_map(|(tag, file, user)| MountSource::Share { tag, file, user });
    let device = text().prop_map(|path| MountSource::Device { path });
    let source = prop_oneof![tmpfs, disk, share, device];
    let mount = (text(), source, any::<bool>());
    let mount = mount.prop_map(|(target, source, read_only)| Mount {
        target,
        source,
        read_only,
    });
    let limits = any::<(Option<u64>, Option<u64>, bool)>();
    (vec(mount, 0..4), limits).prop_map(|(mounts, (shm_bytes, max_processes, read_only))| Setup {
        mounts,
        shm_bytes,
        max_processes,
        read_only,
    })
}

fn restore() -> impl Strategy<Value = Restore> {
    let reattach =
        any::<(u32, u32)>().prop_map(|(id, output_window)| Reattach { id, output_window });
    (identity(), option::of(reattach), setup()).prop_map(|(identity, reattach, setup)| Restore {
        identity,
        reattach,
        setup,
    })
}

fn network() -> impl Strategy<Value = Network> {
    any::<([u8; 6], [u8; 4], u8, [u8; 4])>().prop_map(
        |(hardware_address, address, prefix, gateway)| Network {
            hardware_address,
            address,
            prefix,
            gateway,
        },
    )
}

fn confinement() -> impl Strategy<Value = Confinement> {
    let limit = any::<(u32, Option<u64>, Option<u64>)>();
    let limit = limit.prop_map(|(resource, soft, hard)| Ulimit {
        resource,
        soft,
        hard,
    });
    let rights = any::<(Option<u64>, bool)>();
    (rights, vec(limit, 0..4), vec(text(), 0..4)).prop_map(
        |((capabilities, no_new_privileges), ulimits, groups)| Confinement {
            capabilities,
            ulimits,
            groups,
            no_new_privileges,
        },
    )
}

fn exec() -> impl Strategy<Value = Exec> {
    (
        (vec(bytes(), 0..4), bytes()),
        vec((bytes(), bytes()), 0..4),
        bytes(),
        text(),
        option::of(size()),
        any::<(bool, bool, u32)>(),
        confinement(),
    )
        .prop_map(
            |(
                (argv, fallback),
                env,
                cwd,
                user,
                tty,
                (make_cwd, stdin, output_window),
                confinement,
            )| Exec {
                argv,
                fallback,
                env,
                cwd,
                make_cwd,
                user,
                tty,
                stdin,
                output_window,
                confinement,
            },
        )
}

pub fn to_guest() -> impl Strategy<Value = ToGuest> {
    prop_oneof![
        boot().prop_map(|boot| ToGuest::Boot(Box::new(boot))),
        (any::<u32>(), exec()).prop_map(|(id, spec)| ToGuest::Exec {
            id,
            spec: Box::new(spec)
        }),
        (any::<u32>(), bytes()).prop_map(|(id, data)| ToGuest::Stdin { id, data }),
        any::<u32>().prop_map(|id| ToGuest::CloseStdin { id }),
        any::<(u32, i32)>().prop_map(|(id, signal)| ToGuest::Signal { id, signal }),
        any::<(u32, i32)>().prop_map(|(id, signal)| ToGuest::SignalGroup { id, signal }),
        (any::<u32>(), size()).prop_map(|(id, size)| ToGuest::Resize { id, size }),
        (any::<u32>(), stream(), any::<u32>()).prop_map(|(id, stream, bytes)| ToGuest::Credit {
            id,
            stream,
            bytes
        }),
        Just(ToGuest::Shutdown),
        Just(ToGuest::Quiesce),
        any::<((i64, u32), [u8; 32])>().prop_map(|(wall_clock, entropy)| ToGuest::Thaw {
            wall_clock,
            entropy,
        }),
        restore().prop_map(|restore| ToGuest::Restore(Box::new(restore))),
        any::<u64>().prop_map(|most| ToGuest::LimitProcesses { most }),
    ]
}

pub fn to_host() -> impl Strategy<Value = ToHost> {
    let reason = prop_oneof![
        Just(StartFailure::NotFound),
        Just(StartFailure::NotExecutable),
        Just(StartFailure::NoSuchUser),
        Just(StartFailure::BadWorkdir),
        Just(StartFailure::Other),
    ];
    let phase = (text(), any::<u64>()).prop_map(|(name, micros)| Phase { name, micros });
    let status = prop_oneof![
        any::<i32>().prop_map(ExitStatus::Exited),
        any::<i32>().prop_map(ExitStatus::Signaled),
    ];
    prop_oneof![
        (text(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
            |(kernel, init_uptime_us, memory_bytes, cpus)| ToHost::Hello(Hello {
                kernel,
                init_uptime_us,
                memory_bytes,
                cpus,
            })
        ),
        vec(phase, 0..5).prop_map(|phases| ToHost::Booted(BootTimings { phases })),
        (text(), text(), any::<i32>(), text(), any::<bool>()).prop_map(
            |(step, target, errno, detail, is_root)| {
                ToHost::BootFailed(BootFailed {
                    step,
                    target,
                    errno,
                    detail,
                    part: if is_root {
                        BootPart::Root
                    } else {
                        BootPart::Other
                    },
                })
            }
        ),
        any::<(u32, u32, u32)>().prop_map(|(id, pid, stdin_window)| ToHost::Started {
            id,
            pid,
            stdin_window
        }),
        (any::<u32>(), reason, text(), any::<i32>()).prop_map(|(id, reason, message, errno)| {
            ToHost::StartFailed {
                id,
                failure: StartFailed {
                    reason,
                    message,
                    errno,
                },
            }
        }),
        (any::<u32>(), stream(), bytes()).prop_map(|(id, stream, data)| ToHost::Output {
            id,
            stream,
            data
        }),
        (any::<u32>(), status).prop_map(|(id, status)| ToHost::Exited { id, status }),
        any::<(u32, u32)>().prop_map(|(id, bytes)| ToHost::StdinCredit { id, bytes }),
        any::<u32>().prop_map(|id| ToHost::StdinClosed { id }),
        option::of(text()).prop_map(|problem| ToHost::ShutdownDone { problem }),
        Just(ToHost::Quiesced),
        Just(ToHost::Restored),
    ]
}
