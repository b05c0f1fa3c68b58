//! x86-64: the gates (assembly through which a patched site reaches the handler), the slots (one
//! trampoline each) and the encoding of both.
//!
//! Guarantees of a gate: it changes only `rax`, `rcx`, `r11` and the flags, as the instruction
//! `syscall` may (glibc declares the flags clobbered); it leaves the red zone alone; unwinding
//! through the gate works at any point after its first instructions.
//!
//! A slot is 64 bytes, aligned. The slot holds the instructions that the jump displaced before the
//! `syscall`, then `lea ret(%rip),%rcx; jmp gate; syscall; ret:`, then the instructions displaced
//! after the `syscall` and a jump back. `rcx` is free because `syscall` destroys it. A gate with
//! nothing to do jumps to `ret - 2`, so that the kernel gets the original registers and nothing is
//! on the stack. Where the call's number is known, the filter by descriptor is in the slot itself:
//! after each entry into the kernel the processor has to predict indirect jumps again, which costs
//! more than the rest. The last 8 bytes of each slot hold the address behind the original
//! instruction: one unwind rule for the whole region reads it from there.
//!
//! A site that may clone is followed by a second slot. The second slot has a `syscall` for each of
//! the four calls that can clone, each followed by a jump to the gate that calls `clone_after`.
//! After a cloning `syscall` only registers are trusted: the child may be on another stack, or have
//! overwritten the parent's.

mod finder;
mod gates;
pub(crate) use finder::{find, single::find as find_by_function};
pub(crate) use gates::{CALL_DEPTH, own_region, raw, set_hooks, widen};

use crate::hooks::Hooks;
use gates::{CLASS_CALL, CLASS_FD, CLASS_KERNEL, NR_CLONES, class, gates, is_clone};

/// Tells valgrind, if the process runs under it, to translate changed code again. On a real
/// processor the request has no effect: the request's rotations restore `rdi`.
pub(crate) fn code_changed(start: usize, len: usize) {
    const DISCARD_TRANSLATIONS: usize = 0x1002;
    let request = [DISCARD_TRANSLATIONS, start, len, 0, 0, 0];
    // SAFETY: changes nothing but flags; valgrind reads the request and sets rdx.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0usize => _,
        );
    }
}

/// Size of a slot. Bytes.
pub(crate) const SLOT: usize = 64;
/// Number of slots in the region inside the library.
pub(crate) const OWN_SLOTS: usize = 768;
/// Maximum length of a patched window. Bytes.
pub(crate) const WINDOW: usize = 28;
/// Size of a near jump. Bytes.
pub(crate) const JUMP: usize = 5;
/// Bytes of the `syscall` instruction.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Number of rt_sigreturn. Sites of rt_sigreturn are never patched: the kernel and debuggers
/// recognise the call by its bytes.
pub(crate) const NR_SIGRETURN: i64 = 15;

/// Distance from one clone stub to the next in a site's second slot. Bytes.
const STUB: usize = 14;
/// Offset in a slot of the return address that the unwinder reads. Bytes.
const UNWIND_AT: usize = 56;

/// Size of the descriptor filter inside a slot. Bytes.
const FILTER: usize = 27;
const FILTER_WINDOW: usize = UNWIND_AT - FILTER - 7 - 2 * JUMP;

/// One `syscall` instruction and how it can be patched. Offsets are from the object's load address.
/// The cache file stores this struct as it is: plain numbers, no padding.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Offset of the instruction.
    pub at: u32,
    /// Start of the patched window. Jumps may lead to the start, but none leads inside the window.
    pub start: u32,
    /// Offset of five dead bytes for a jump; used by [`FORM_HOP`].
    pub hop: u32,
    /// The system call's number; -1 if it is only known at run time.
    pub nr: i32,
    /// Number of bytes displaced before the `syscall`.
    pub pre: u8,
    /// Number of bytes displaced after the `syscall`.
    pub post: u8,
    /// One of the `FORM_` constants.
    pub form: u8,
    pub zero: u8,
    /// The window's unpatched bytes; for [`FORM_HOP`] followed by the five dead bytes.
    pub bytes: [u8; WINDOW],
}

/// The site can't be patched.
pub(crate) const FORM_NONE: u8 = 0;
/// A jump of five bytes replaces whole instructions, one of them the `syscall`.
pub(crate) const FORM_WINDOW: u8 = 1;
/// A two-byte jump in place of the `syscall`, to dead bytes that hold the near jump.
pub(crate) const FORM_HOP: u8 = 2;

impl Site {
    /// Whether the site is to be patched for these hooks.
    pub(crate) fn wanted(&self, hooks: &Hooks) -> bool {
        self.nr < 0 || class(hooks, self.nr.into()) != CLASS_KERNEL
    }

    /// Number of slots that the site's trampoline takes.
    pub(crate) fn slots(&self) -> usize {
        if self.nr < 0 || is_clone(self.nr.into()) {
            2
        } else {
            1
        }
    }

    /// Length of the window. Bytes.
    pub(crate) fn window_len(&self) -> usize {
        usize::from(self.pre) + SYSCALL.len() + usize::from(self.post)
    }

    /// Whether the site is plausible for code in `low..high`, without reading the code.
    pub(crate) fn is_sane(&self, low: u32, high: u32) -> bool {
        let (pre, len) = (usize::from(self.pre), self.window_len());
        let inside = |at: u32, len: usize| at >= low && at < high && len <= (high - at) as usize;
        let shape = match self.form {
            FORM_NONE => true,
            FORM_WINDOW => len >= JUMP,
            FORM_HOP => {
                len == 2
                    && inside(self.hop, JUMP)
                    && near(self.at as usize + 2, self.hop as usize, 127)
            }
            _ => false,
        };
        shape
            && self.zero == 0
            && len <= WINDOW
            && (-1..512).contains(&self.nr)
            && inside(self.start, len)
            && u64::from(self.start) + pre as u64 == u64::from(self.at)
            && self.bytes[pre..pre + 2] == SYSCALL
    }

    /// Whether the code in memory still equals the code that the site records.
    ///
    /// # Safety
    /// `base` is the load address of an object for which [`Site::is_sane`] held with its code's
    /// bounds.
    pub(crate) unsafe fn matches(&self, base: usize) -> bool {
        let same = |at: u32, bytes: &[u8]| {
            bytes.iter().enumerate().all(|(i, &b)| {
                // SAFETY: the byte lies inside the object's code (`is_sane`), which is readable.
                b == unsafe { *((base + at as usize + i) as *const u8) }
            })
        };
        same(self.start, &self.bytes[..self.window_len()])
            && (self.form != FORM_HOP || same(self.hop, &self.bytes[2..2 + JUMP]))
    }
}

fn near(from: usize, to: usize, reach: i64) -> bool {
    let d = to as i64 - from as i64;
    (-reach - 1..=reach).contains(&d)
}

/// Whether near jumps reach from anywhere in one range to anywhere in the other.
pub(crate) fn in_reach(a: (usize, usize), b: (usize, usize)) -> bool {
    let reach = i64::from(i32::MAX) - 64;
    near(a.0, b.1, reach) && near(a.1, b.0, reach) && near(a.0, b.0, reach) && near(a.1, b.1, reach)
}

/// Size of a far region's head, which holds jumps to the gates. Bytes.
pub(crate) const FAR_HEAD: usize = 2 * SLOT;
/// Size of a far region's tail, which holds its unwind table. Bytes.
pub(crate) const FAR_TAIL: usize = 128;

/// A region of slots that is being filled and is still writable.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub start: usize,
    pub len: usize,
    /// Address of the next free slot.
    pub next: usize,
    /// Whether the region is outside of the library. The slots of such a region reach the gates
    /// through the jumps in the region's head.
    pub far: bool,
    /// Whether the region is far and for code other than libc's: see [`gates`].
    pub wide: bool,
}

/// Writes code at an address, byte by byte, because the function must not call libc.
struct Pen(usize);

impl Pen {
    unsafe fn put(&mut self, bytes: &[u8]) {
        for &b in bytes {
            // SAFETY: the caller promises that the address is writable.
            unsafe { (self.0 as *mut u8).write_volatile(b) };
            self.0 += 1;
        }
    }

    /// Writes instructions that were at `from`, with their operands relative to `rip` adjusted;
    /// false if such an operand can't reach its address from the new position.
    unsafe fn moved(&mut self, code: &[u8], from: usize) -> bool {
        use iced_x86::{Decoder, DecoderOptions};
        let start = self.0;
        // SAFETY: the caller promises that the target is writable.
        unsafe { self.put(code) };
        let mut decoder = Decoder::with_ip(64, code, from as u64, DecoderOptions::NONE);
        while decoder.can_decode() {
            let at = decoder.position();
            let i = decoder.decode();
            if !i.is_ip_rel_memory_operand() {
                continue;
            }
            let place = at + decoder.get_constant_offsets(&i).displacement_offset();
            let next = start + decoder.position();
            let Ok(distance) = i32::try_from(i.ip_rel_memory_address() as i64 - next as i64) else {
                return false;
            };
            // SAFETY: the operand lies inside the bytes just written.
            unsafe { Pen(start + place).put(&distance.to_le_bytes()) };
        }
        true
    }

    /// Writes an instruction whose last 4 bytes are the distance from its end to `to`.
    unsafe fn relative(&mut self, code: &[u8], to: usize) {
        // SAFETY: the caller promises that the target is writable.
        unsafe {
            self.put(code);
            let d = (to as i64 - (self.0 as i64 + 4)) as i32;
            self.put(&d.to_le_bytes());
        }
    }
}

const LEA_RCX: [u8; 3] = [0x48, 0x8d, 0x0d];
const JMP: u8 = 0xe9;

impl Region {
    /// Writes the head of a far region.
    ///
    /// # Safety
    /// The region is writable and unused.
    pub(crate) unsafe fn begin_far(&mut self) {
        let mut pen = Pen(self.start);
        for gate in gates(self.wide) {
            // SAFETY: 8 jumps of 14 bytes, inside the head; the caller promises that it is
            // writable.
            unsafe {
                pen.put(&[0xff, 0x25, 0, 0, 0, 0]);
                pen.put(&gate.to_le_bytes());
            }
        }
        self.next = self.start + FAR_HEAD;
    }

    fn gate(&self, index: usize) -> usize {
        if self.far {
            self.start + 14 * index
        } else {
            gates(self.wide)[index]
        }
    }

    /// Whether `slots` more slots fit.
    pub(crate) fn has_room(&self, slots: usize) -> bool {
        let tail = if self.far { FAR_TAIL } else { 0 };
        self.next + slots * SLOT <= self.start + self.len - tail
    }

    /// Writes the trampoline of a site and returns its address. None if an operand of a displaced
    /// instruction can't reach its address from the trampoline.
    ///
    /// # Safety
    /// The region is writable, has room, and is in reach of the object; the site matches the object
    /// at `base`.
    pub(crate) unsafe fn add(&mut self, hooks: &Hooks, base: usize, site: &Site) -> Option<usize> {
        let slot = self.next;
        self.next += site.slots() * SLOT;
        let (pre, len) = (usize::from(site.pre), site.window_len());
        let class = match site.nr {
            -1 => 0,
            nr => class(hooks, nr.into()),
        };
        let inline =
            class == CLASS_FD && len <= FILTER_WINDOW && hooks.fd_filter_len <= i32::MAX as usize;
        let gate = if inline { CLASS_CALL } else { class };
        let behind = base + site.at as usize + SYSCALL.len();
        let kernel = slot + pre + if inline { FILTER } else { 0 } + LEA_RCX.len() + 4 + JUMP;
        let ret = kernel + SYSCALL.len();
        let mut pen = Pen(slot);
        // SAFETY: `has_room` held for the site's slots. The code takes at most UNWIND_AT bytes of a
        // slot, and the address at the slot's end 8. In a second slot, the stubs take 56 bytes.
        unsafe {
            // Only sites outside of libc have operands relative to `rip`: see the finder.
            if !self.wide {
                pen.put(&site.bytes[..pre]);
            } else if !pen.moved(&site.bytes[..pre], base + site.start as usize) {
                return None;
            }
            if inline {
                // mov %edi,%ecx; cmp $len,%ecx; jae kernel; movabs $filter,%r11; cmpb
                // $0,(%r11,%rcx); je kernel
                pen.put(&[0x89, 0xf9, 0x81, 0xf9]);
                pen.put(&(hooks.fd_filter_len as u32).to_le_bytes());
                pen.put(&[0x73, (kernel - (pen.0 + 2)) as u8]);
                pen.put(&[0x49, 0xbb]);
                pen.put(&(hooks.fd_filter as usize).to_le_bytes());
                pen.put(&[0x41, 0x80, 0x3c, 0x0b, 0]);
                pen.put(&[0x74, (kernel - (pen.0 + 2)) as u8]);
            }
            pen.relative(&LEA_RCX, ret);
            pen.relative(&[JMP], self.gate(gate.into()));
            pen.put(&SYSCALL);
            if !self.wide {
                pen.put(&site.bytes[pre + 2..len]);
            } else if !pen.moved(&site.bytes[pre + 2..len], behind) {
                return None;
            }
            pen.relative(&[JMP], base + site.start as usize + len);
            Pen(slot + UNWIND_AT).put(&behind.to_le_bytes());
            if site.slots() == 2 {
                for stub in 0..NR_CLONES.len() {
                    let mut pen = Pen(slot + SLOT + stub * STUB);
                    pen.put(&SYSCALL);
                    pen.relative(&LEA_RCX, ret);
                    pen.relative(&[JMP], self.gate(4 + stub));
                }
                Pen(slot + SLOT + UNWIND_AT).put(&behind.to_le_bytes());
            }
        }
        Some(slot)
    }

    /// Writes a far region's unwind table (the rule of `forebay_slots`) into its tail; returns its
    /// address.
    ///
    /// # Safety
    /// The region is far and writable.
    pub(crate) unsafe fn end_far(&mut self) -> usize {
        let table = self.start + self.len - FAR_TAIL;
        let mut pen = Pen(table);
        // SAFETY: writes 28 + 28 + 4 bytes inside the tail, which is writable.
        unsafe {
            // The common entry (CIE): version 1, no augmentation, factors 1 and -8, return column
            // 16.
            pen.put(&24u32.to_le_bytes());
            pen.put(&[0; 4]);
            pen.put(&[1, 0, 1, 0x78, 16]);
            pen.put(&[
                0x0c, 7, 0, 0x16, 16, 8, 0x80, 0x00, 0x09, 0xc0, 0x1a, 0x23, 0x38, 0x06, 0,
            ]);
            // The region's entry (FDE): distance back to the common entry, start, length.
            let id_at = pen.0 + 4;
            pen.put(&20u32.to_le_bytes());
            pen.put(&((id_at - table) as u32).to_le_bytes());
            pen.put(&self.start.to_le_bytes());
            pen.put(&(self.len - FAR_TAIL).to_le_bytes());
            pen.put(&0u32.to_le_bytes());
        }
        table
    }
}

/// Turns a site into a jump to its trampoline.
///
/// # Safety
/// The code is writable, the site matches it, and the trampoline is complete and executable.
pub(crate) unsafe fn patch(base: usize, site: &Site, slot: usize) {
    let jump = |at: usize| {
        let mut code = [0x90; WINDOW];
        code[0] = JMP;
        let d = (slot as i64 - (at as i64 + JUMP as i64)) as i32;
        code[1..JUMP].copy_from_slice(&d.to_le_bytes());
        code
    };
    let at = base + site.start as usize;
    // SAFETY: only the window and dead bytes are written.
    unsafe {
        if site.form == FORM_HOP {
            let hop = base + site.hop as usize;
            replace(hop, &jump(hop)[..JUMP]);
            replace(
                at,
                &[0xeb, (site.hop as i64 - (i64::from(site.at) + 2)) as u8],
            );
        } else {
            // If at least five bytes before the `syscall` are displaced, the `syscall` stays in
            // place: a thread blocked in it can return, and one that has just loaded the number can
            // continue.
            let len = if usize::from(site.pre) >= JUMP {
                JUMP
            } else {
                site.window_len()
            };
            replace(at, &jump(at)[..len]);
        }
    }
}

/// Restores a patched site.
///
/// # Safety
/// The code is writable, and the site was patched.
pub(crate) unsafe fn unpatch(base: usize, site: &Site) {
    // SAFETY: only the window and, for a hop, dead bytes are written.
    unsafe {
        replace(base + site.start as usize, &site.bytes[..site.window_len()]);
        if site.form == FORM_HOP {
            replace(base + site.hop as usize, &site.bytes[2..2 + JUMP]);
        }
    }
}

/// Overwrites code: in one store, if the code lies in 8 aligned bytes. Otherwise a jump to itself
/// is written at the start first, and replaced last.
unsafe fn replace(at: usize, bytes: &[u8]) {
    use core::sync::atomic::{AtomicU64, Ordering, fence};
    let word = at & !7;
    // SAFETY: the caller promises writable code; the aligned word around it is on the same page.
    unsafe {
        if at + bytes.len() <= word + 8 {
            let cell = &*(word as *const AtomicU64);
            let mut value = cell.load(Ordering::Relaxed).to_le_bytes();
            for (i, &b) in bytes.iter().enumerate() {
                value[at - word + i] = b;
            }
            cell.store(u64::from_le_bytes(value), Ordering::SeqCst);
        } else {
            let head = at as *mut u16;
            head.write_unaligned(u16::from_le_bytes([0xeb, 0xfe]));
            fence(Ordering::SeqCst);
            Pen(at + 2).put(&bytes[2..]);
            fence(Ordering::SeqCst);
            head.write_unaligned(u16::from_le_bytes([bytes[0], bytes[1]]));
        }
    }
}
