//! The ACPI tables, which describe processors, interrupts, devices and the power switch to the
//! kernel.
//!
//! Hardware-reduced ACPI: no legacy timer or interrupt controller, no power button, only registers
//! to end the machine ([`power`]). The tables lie below 1 MiB, one after another, after the pointer
//! to them.

use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Method, Name, Notify, Package, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};

use super::legacy::{Serial, power};
use super::memory::layout;
use super::vmgenid;

const OEM: [u8; 6] = *b"MICA  ";
const TABLE: [u8; 8] = *b"MICABOX ";
const REVISION: u32 = 1;

/// FADT, `IAPC_BOOT_ARCH`: neither a VGA adapter nor a clock chip; the bit for a keyboard
/// controller is not set either.
const NO_VGA: u16 = 1 << 2;
const NO_CMOS_CLOCK: u16 = 1 << 5;

/// Every table begins at a multiple of this.
const ALIGNMENT: usize = 16;

/// Returns the tables for `cpus` processors and virtio devices with these interrupts, in the order
/// of their registers. The bytes begin with the root pointer, belong at [`layout::ACPI`], and fit
/// there.
pub(crate) fn tables(cpus: u8, interrupts: &[u32]) -> Vec<u8> {
    // The pointer is written last, when the address of the table of tables is known.
    let mut bytes = vec![0; Rsdp::len().next_multiple_of(ALIGNMENT)];
    let dsdt = append(&mut bytes, &dsdt(interrupts));
    let fadt = append(&mut bytes, &fadt(dsdt));
    let madt = append(&mut bytes, &madt(cpus));
    let mut xsdt = XSDT::new(OEM, TABLE, REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = append(&mut bytes, &xsdt);
    let mut pointer = Vec::new();
    Rsdp::new(OEM, xsdt).to_aml_bytes(&mut pointer);
    for (to, from) in bytes.iter_mut().zip(pointer) {
        *to = from;
    }
    bytes
}

/// Appends a table; returns its address.
fn append(bytes: &mut Vec<u8>, table: &dyn Aml) -> u64 {
    let address = layout::ACPI.start + bytes.len() as u64;
    table.to_aml_bytes(bytes);
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    address
}

fn port(address: u16) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        address.into(),
    )
}

fn fadt(dsdt: u64) -> impl Aml {
    let mut fadt = FADTBuilder::new(OEM, TABLE, REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup);
    fadt.iapc_boot_arch = (NO_VGA | NO_CMOS_CLOCK).into();
    fadt.reset_reg = port(power::RESET);
    fadt.reset_value = power::RESET_VALUE;
    fadt.sleep_control_reg = port(power::SLEEP_CONTROL);
    fadt.sleep_status_reg = port(power::SLEEP_STATUS);
    fadt.finalize()
}

fn madt(cpus: u8) -> impl Aml {
    let local = LocalInterruptController::Address(layout::LOCAL_APIC);
    let mut madt = MADT::new(OEM, TABLE, REVISION, local);
    madt.add_structure(IoApic::new(0, layout::IO_APIC, 0));
    for id in 0..cpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt
}

/// Returns the table of devices that are not otherwise discoverable.
fn dsdt(interrupts: &[u32]) -> impl Aml {
    let mut devices = Vec::new();
    serial(&mut devices);
    vmgenid(&mut devices);
    for (interrupt, index) in interrupts.iter().zip(0_u32..) {
        virtio(index, *interrupt, &mut devices);
    }
    let mut body = Scope::raw(Path::new("_SB_"), devices);
    let zero = 0_u8;
    let off = power::SOFT_OFF;
    Name::new(Path::new("_S5_"), &Package::new(vec![&off, &zero])).to_aml_bytes(&mut body);

    const HEADER: u32 = 36;
    let mut dsdt = Sdt::new(*b"DSDT", HEADER, 2, OEM, TABLE, REVISION);
    dsdt.append_slice(&body);
    Bytes(dsdt.as_slice().to_vec())
}

fn serial(sink: &mut Vec<u8>) {
    let ports = IO::new(Serial::FIRST_PORT, Serial::FIRST_PORT, 1, 8);
    Device::new(
        Path::new("COM1"),
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
            &Name::new(Path::new("_UID"), &0_u8),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![&ports, &edge(Serial::INTERRUPT)]),
            ),
        ],
    )
    .to_aml_bytes(sink);
}

/// Adds the device of the machine's generation ID, and the event that announces a change of it.
fn vmgenid(sink: &mut Vec<u8>) {
    // Below 4 GiB, as the layout has it.
    let (low, high) = (layout::GENERATION as u32, 0_u8);
    Device::new(
        Path::new("VGEN"),
        vec![
            &Name::new(Path::new("_HID"), &"VMGENCTR"),
            &Name::new(Path::new("_CID"), &"VM_Gen_Counter"),
            &Name::new(Path::new("_DDN"), &"VM_Gen_Counter"),
            &Name::new(Path::new("ADDR"), &Package::new(vec![&low, &high])),
        ],
    )
    .to_aml_bytes(sink);
    const CHANGED: u8 = 0x80;
    Device::new(
        Path::new("GED_"),
        vec![
            &Name::new(Path::new("_HID"), &"ACPI0013"),
            &Name::new(Path::new("_UID"), &0_u8),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![&edge(vmgenid::INTERRUPT)]),
            ),
            // The only event.
            &Method::new(
                Path::new("_EVT"),
                1,
                true,
                vec![&Notify::new(&Path::new("\\_SB_.VGEN"), &CHANGED)],
            ),
        ],
    )
    .to_aml_bytes(sink);
}

/// Adds a virtio-mmio device, which Linux recognises by `LNRO0005`.
fn virtio(index: u32, interrupt: u32, sink: &mut Vec<u8>) {
    // Below 4 GiB, as the layout has it.
    let address = layout::VIRTIO + u64::from(index) * layout::VIRTIO_SIZE;
    let registers = Memory32Fixed::new(true, address as u32, layout::VIRTIO_SIZE as u32);
    Device::new(
        Path::new(&format!("V{index:03}")),
        vec![
            &Name::new(Path::new("_HID"), &"LNRO0005"),
            &Name::new(Path::new("_UID"), &index),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![&registers, &edge(interrupt)]),
            ),
        ],
    )
    .to_aml_bytes(sink);
}

fn edge(number: u32) -> Interrupt {
    Interrupt::new(true, true, false, false, number)
}

/// A table that is already encoded.
struct Bytes(Vec<u8>);

impl Aml for Bytes {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    fn table(bytes: &[u8], address: u64) -> &[u8] {
        let at = usize::try_from(address - layout::ACPI.start).unwrap();
        let length = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
        &bytes[at..at + length as usize]
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    #[test]
    fn every_table_is_reached_and_sums_to_zero() {
        let bytes = tables(64, &[5; 19]);
        assert!(bytes.len() as u64 <= layout::GENERATION - layout::ACPI.start);
        assert_eq!(&bytes[..8], b"RSD PTR ");
        assert_eq!(sum(&bytes[..20]), 0);
        assert_eq!(sum(&bytes[..36]), 0);
        let xsdt = table(&bytes, u64_at(&bytes, 24));
        assert_eq!((&xsdt[..4], sum(xsdt)), (&b"XSDT"[..], 0));
        let fadt = table(&bytes, u64_at(xsdt, 36));
        assert_eq!((&fadt[..4], sum(fadt)), (&b"FACP"[..], 0));
        let madt = table(&bytes, u64_at(xsdt, 44));
        assert_eq!((&madt[..4], sum(madt)), (&b"APIC"[..], 0));
        assert_eq!(madt.len(), 44 + 12 + 64 * 8);
        let dsdt = table(&bytes, u64_at(fadt, 140));
        assert_eq!((&dsdt[..4], sum(dsdt)), (&b"DSDT"[..], 0));
        let devices = dsdt.windows(8).filter(|window| window == b"LNRO0005");
        assert_eq!(devices.count(), 19);
    }
}
