//! Finds the `syscall` instructions of an object in memory and chooses how each can be patched.
//!
//! The finder sweeps linearly over the executable segment, resynchronised at each function start
//! that `.eh_frame_hdr` gives, and collects every address that anything may jump to: direct
//! branches, addresses taken relative to `rip`, and probable jump tables. It guarantees that no
//! such address lies inside a window that it proposes, and that a window's instructions can be
//! moved to another address. An address that is wrongly presumed to be a target only costs a site
//! its best form.

pub(crate) mod single;

use super::{FORM_HOP, FORM_NONE, FORM_WINDOW, JUMP, SYSCALL, Site, WINDOW};
use crate::object::Object;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpKind, Register,
};

/// Maximum number of instructions examined before a site.
const BACK: usize = 40;
/// Maximum number of entries of a jump table.
const TABLE_MAX: usize = 4096;

/// The two instructions that load the number of rt_sigreturn. Unwinders recognise the call by these
/// bytes, too, so such a site must not be patched.
const SIGRETURN: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0], &[0xb8, 15, 0, 0, 0]];

struct Sweep<'a> {
    code: &'a [u8],
    low: u32,
    /// One bit per byte of code: whether something may jump to this byte.
    targets: Vec<u64>,
    /// One bit per byte of code: whether an instruction begins at this byte.
    starts: Vec<u64>,
    syscalls: Vec<u32>,
    /// Ranges of dead bytes: padding that is never executed.
    gaps: Vec<(u32, u32)>,
    /// Whether a jump may lead to any instruction of the code.
    open: bool,
    /// Entries of `syscalls` that are presumed to be data unless a jump leads to them.
    doubtful: Vec<u32>,
    /// Whether operands relative to `rip` are adjusted when an instruction is moved.
    adjusts: bool,
}

impl<'a> Sweep<'a> {
    /// Returns an empty analysis of code that begins at `low`.
    fn new(code: &'a [u8], low: u32, adjusts: bool) -> Sweep<'a> {
        let words = code.len() / 64 + 1;
        Sweep {
            code,
            low,
            targets: vec![0; words],
            starts: vec![0; words],
            syscalls: Vec::new(),
            gaps: Vec::new(),
            open: false,
            doubtful: Vec::new(),
            adjusts,
        }
    }

    fn mark(&mut self, at: u64) {
        let i = at.wrapping_sub(self.low.into());
        if i < self.code.len() as u64 {
            self.targets[i as usize / 64] |= 1 << (i % 64);
        }
    }

    fn bit(map: &[u64], i: u32) -> bool {
        map.get(i as usize / 64)
            .is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    fn is_target(&self, at: u32) -> bool {
        Self::bit(&self.targets, at - self.low)
    }

    fn is_start(&self, at: u32) -> bool {
        Self::bit(&self.starts, at - self.low)
    }

    fn decode(&self, at: u32) -> Instruction {
        Decoder::with_ip(
            64,
            &self.code[(at - self.low) as usize..],
            at.into(),
            DecoderOptions::NONE,
        )
        .decode()
    }

    /// Whether an instruction can run at another address, and continues with the next instruction.
    fn movable(&self, i: &Instruction) -> bool {
        i.flow_control() == FlowControl::Next
            && !i.is_invalid()
            && (self.adjusts || !i.is_ip_rel_memory_operand())
            && i.mnemonic() != Mnemonic::Syscall
    }

    /// Returns the instruction that ends at `at`.
    fn before(&self, at: u32) -> Option<Instruction> {
        (1..=15)
            .map_while(|n| at.checked_sub(n).filter(|&s| s >= self.low))
            .find(|&s| self.is_start(s))
            .and_then(|s| {
                let i = self.decode(s);
                (i.next_ip() == u64::from(at)).then_some(i)
            })
    }
}

/// Returns all sites of an object.
///
/// # Safety
/// As for [`Object::code`].
pub(crate) unsafe fn find(object: &Object) -> Vec<Site> {
    // SAFETY: the caller's promise; the code isn't written until the finder has returned.
    let (code, readable) = unsafe { (object.code(), object.readable()) };
    let low = object.code_low;
    // SAFETY: the caller promises that the object is loaded.
    let mut functions = unsafe { object.functions() };
    functions.sort_unstable();

    let mut sweep = Sweep::new(code, low, false);
    let mut tables = Vec::new();
    for &f in &functions {
        sweep.mark(f.into());
    }
    let end = u64::from(low) + code.len() as u64;
    let mut function = functions
        .iter()
        .map(|&f| u64::from(f))
        .filter(|&f| f >= low.into())
        .peekable();
    let mut decoder = Decoder::with_ip(64, code, low.into(), DecoderOptions::NONE);
    let mut i = Instruction::default();
    // Start of possibly dead bytes: those after an instruction that doesn't continue with the next.
    let mut dead: Option<u64> = None;
    while decoder.can_decode() {
        let ip = decoder.ip();
        while function.next_if(|&f| f <= ip).is_some() {}
        decoder.decode_out(&mut i);
        // glibc's unwind entry of its signal trampoline begins one byte early, inside the padding.
        let early = |f: u64| i.mnemonic() == Mnemonic::Nop && i.next_ip() == f + 1;
        if let Some(&f) = function.peek()
            && i.next_ip() > f
            && !early(f)
        {
            let _ = decoder.set_position((f - u64::from(low)) as usize);
            decoder.set_ip(f);
            dead = None;
            continue;
        }
        let at = (ip - u64::from(low)) as usize;
        if i.is_invalid() {
            dead = None;
            continue;
        }
        sweep.starts[at / 64] |= 1 << (at % 64);
        if i.code() == Code::Syscall {
            sweep.syscalls.push(ip as u32);
        }
        if matches!(
            i.op0_kind(),
            OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16
        ) {
            sweep.mark(i.near_branch_target());
        }
        if i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand() {
            let to = i.ip_rel_memory_address();
            if to >= low.into() && to < end {
                sweep.mark(to);
            } else {
                tables.push(to);
            }
        }
        let padding = matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        match dead {
            Some(from) if !padding => {
                if ip >= from + JUMP as u64 {
                    sweep.gaps.push((from as u32, ip as u32));
                }
                dead = None;
            }
            _ => {}
        }
        if matches!(
            i.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        ) || matches!(i.mnemonic(), Mnemonic::Hlt | Mnemonic::Ud2)
        {
            dead = Some(i.next_ip());
        }
    }

    // GCC's jump tables hold 32-bit distances from the table's start.
    tables.sort_unstable();
    tables.dedup();
    for table in tables {
        for k in 0..TABLE_MAX {
            let Some(entry) = read_i32(&readable, table + 4 * k as u64) else {
                break;
            };
            let to = table.wrapping_add_signed(entry.into());
            if to < low.into() || to >= end {
                break;
            }
            sweep.mark(to);
        }
    }
    sweep.choose()
}

fn read_i32(readable: &[(u64, &[u8])], at: u64) -> Option<i32> {
    readable.iter().find_map(|&(low, bytes)| {
        let i = usize::try_from(at.checked_sub(low)?).ok()?;
        let four = bytes.get(i..i.checked_add(4)?)?;
        Some(i32::from_le_bytes(four.try_into().ok()?))
    })
}

impl Sweep<'_> {
    fn choose(&self) -> Vec<Site> {
        let mut info = InstructionInfoFactory::new();
        let mut hops: Vec<u32> = Vec::new();
        let mut sites: Vec<Site> = Vec::with_capacity(self.syscalls.len());
        // The end of the previous window, so that windows don't overlap.
        let mut taken = self.low;
        for &at in &self.syscalls {
            let mut site = Site {
                at,
                start: at,
                hop: 0,
                nr: -1,
                pre: 0,
                post: 0,
                form: FORM_NONE,
                zero: 0,
                bytes: [0; WINDOW],
            };
            site.nr = self.number(&mut info, at);
            if let Some((pre, post)) = self.window(at, taken) {
                site.start = at - pre;
                site.pre = pre as u8;
                site.post = post as u8;
                site.form = FORM_WINDOW;
            } else if let Some(hop) = self.hop(at, &hops) {
                site.hop = hop;
                site.form = FORM_HOP;
                hops.push(hop);
                let i = (hop - self.low) as usize;
                site.bytes[2..2 + JUMP].copy_from_slice(&self.code[i..i + JUMP]);
            }
            let len = site.window_len();
            taken = site.start + len as u32;
            let i = (site.start - self.low) as usize;
            site.bytes[..len].copy_from_slice(&self.code[i..i + len]);
            sites.push(site);
        }
        sites
    }

    /// Returns the call number in `eax` at a site, if only one path of execution leads there; else
    /// -1.
    fn number(&self, info: &mut InstructionInfoFactory, site: u32) -> i32 {
        let before = &self.code[..(site - self.low) as usize];
        if SIGRETURN.iter().any(|s| before.ends_with(s)) {
            return super::NR_SIGRETURN as i32;
        }
        let mut at = site;
        for _ in 0..BACK {
            if self.is_target(at) {
                return -1;
            }
            let Some(i) = self.before(at) else { return -1 };
            if i.flow_control() != FlowControl::Next {
                return -1;
            }
            at = i.ip() as u32;
            let writes = info
                .info(&i)
                .used_registers()
                .iter()
                .any(|u| u.register().full_register() == Register::RAX && is_write(u.access()));
            if writes {
                let nr = match (i.mnemonic(), i.op1_kind()) {
                    (
                        Mnemonic::Mov,
                        OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64,
                    ) if i.op0_register().full_register() == Register::RAX => i.immediate(1) as i64,
                    (Mnemonic::Xor, OpKind::Register)
                        if i.op0_register() == Register::EAX
                            && i.op1_register() == Register::EAX =>
                    {
                        0
                    }
                    _ => -1,
                };
                return if (0..512).contains(&nr) {
                    nr as i32
                } else {
                    -1
                };
            }
        }
        -1
    }

    /// Returns how many bytes before and after the `syscall` belong to its window. Five before it
    /// are best, so that the `syscall` itself stays; else as few as possible. If any instruction
    /// may be a jump target, the window is one instruction of at least five bytes before the
    /// `syscall`.
    fn window(&self, at: u32, taken: u32) -> Option<(u32, u32)> {
        let mut posts = vec![0u32];
        let mut end = at + SYSCALL.len() as u32;
        while ((end - at) as usize) < WINDOW && (end - self.low) < self.code.len() as u32 {
            if self.is_target(end) || !self.is_start(end) {
                break;
            }
            let i = self.decode(end);
            if !self.movable(&i) {
                break;
            }
            end = i.next_ip() as u32;
            posts.push(end - at - SYSCALL.len() as u32);
        }
        let mut pres = vec![0u32];
        let mut start = at;
        while ((at - start) as usize) < WINDOW {
            // A jump target at `start` would be inside a longer window.
            if self.is_target(start) {
                break;
            }
            let Some(i) = self.before(start) else { break };
            if !self.movable(&i) || (i.ip() as u32) < taken {
                break;
            }
            start = i.ip() as u32;
            pres.push(at - start);
        }
        // The jump overwrites one instruction; the others stay, because something may jump to them.
        let whole = |w: &&[u32]| (w[1] - w[0]) as usize >= JUMP;
        let fits = |pre: &u32| *pre as usize + SYSCALL.len() <= WINDOW;
        if self.open {
            let pre = pres.windows(2).find(whole).map(|w| w[1]).filter(fits);
            return pre.map(|pre| (pre, 0));
        }
        if let Some(&pre) = pres.iter().find(|&&p| p as usize >= JUMP)
            && pre as usize + SYSCALL.len() <= WINDOW
        {
            return Some((pre, 0));
        }
        let pairs = pres
            .iter()
            .flat_map(|&pre| posts.iter().map(move |&post| (pre, post)));
        pairs
            .filter(|&(pre, post)| {
                (JUMP..=WINDOW).contains(&((pre + post) as usize + SYSCALL.len()))
            })
            .min_by_key(|&(pre, post)| pre + post)
    }

    /// Finds dead bytes in reach of a short jump.
    fn hop(&self, at: u32, used: &[u32]) -> Option<u32> {
        let from = i64::from(at) + 2;
        self.gaps.iter().find_map(|&(low, high)| {
            let free = |h: u32| {
                used.iter()
                    .all(|&u| h + JUMP as u32 <= u || u + JUMP as u32 <= h)
            };
            let dead = (low..high).all(|a| !self.is_target(a));
            (low..=high - JUMP as u32)
                .find(|&h| dead && (-128..=127).contains(&(i64::from(h) - from)) && free(h))
        })
    }
}

fn is_write(access: iced_x86::OpAccess) -> bool {
    use iced_x86::OpAccess as A;
    matches!(
        access,
        A::Write | A::CondWrite | A::ReadWrite | A::ReadCondWrite
    )
}

#[cfg(test)]
mod tests;
