"""A kernel that stops at its first instruction: what is over by then is the VMM's part.

Both entries of an ELF kernel, PVH's and the 64-bit one, get a few bytes of code in place of the
kernel's own: `K` on the serial port, then the time stamp counter's low half, then a halt for
good. Everything else, its size above all, is the kernel's.
"""

import pathlib
import struct

# XEN_ELFNOTE_PHYS32_ENTRY: the type of the note that holds the entry's physical address.
NOTE = (b"Xen\0", 18)
PT_LOAD, PT_NOTE = 1, 4

# The same in 32-bit mode, which PVH enters in, and in 64-bit mode.
CODE = bytes.fromhex(
    "0f31"  # rdtsc
    "89c1"  # mov ecx, eax
    "66baf803"  # mov dx, 0x3f8
    "b04b ee"  # mov al, 'K'; out dx, al
    "88c8 ee c1e908"  # mov al, cl; out dx, al; shr ecx, 8
    "88c8 ee c1e908"
    "88c8 ee c1e908"
    "88c8 ee"
    "fa f4 ebfd"  # cli; hlt; jmp to the hlt
)


def stopping(kernel: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Writes a copy of the ELF `kernel` that stops as above."""
    image = bytearray(kernel.read_bytes())
    for address in (pvh_entry(image), struct.unpack_from("<Q", image, 24)[0]):
        at = offset(image, address)
        image[at : at + len(CODE)] = CODE
    out.write_bytes(image)
    return out


def segments(image: bytes, kind: int) -> list[tuple[int, int, int]]:
    """Offset in the file, physical address and length in the file of program headers."""
    start = struct.unpack_from("<Q", image, 32)[0]
    size, count = struct.unpack_from("<HH", image, 54)
    found = []
    for header in range(start, start + size * count, size):
        fields = struct.unpack_from("<IIQQQQ", image, header)
        if fields[0] == kind:
            found.append((fields[2], fields[4], fields[5]))
    return found


def pvh_entry(image: bytes) -> int:
    """The physical address of the PVH entry."""
    for at, _, length in segments(image, PT_NOTE):
        end = at + length
        while at < end:
            name_size, size, kind = struct.unpack_from("<III", image, at)
            name = bytes(image[at + 12 : at + 12 + name_size])
            value = at + 12 + (name_size + 3) // 4 * 4
            if (name, kind) == NOTE:
                return int.from_bytes(image[value : value + size], "little")
            at = value + (size + 3) // 4 * 4
    raise ValueError("the kernel has no PVH entry")


def offset(image: bytes, address: int) -> int:
    """Where in the file a physical address is."""
    for at, start, length in segments(image, PT_LOAD):
        if start <= address < start + length:
            return at + address - start
    raise ValueError(f"{address:#x} is in no segment")
