//! Finds the `syscall` instructions of any library or program, one function at a time. Most code is
//! only searched for the two bytes of a `syscall`, and never decoded.
//!
//! The two bytes also occur inside other instructions, and in data. The bytes count as an
//! instruction if decoding finds one there, in a function that `.eh_frame` describes, decoded from
//! its beginning to its end. If any byte of the function is no valid instruction, the whole
//! function is left alone. Jumps into a function from other functions are found by their bytes:
//! compilers move rarely needed parts elsewhere. Where a function jumps by a table, any instruction
//! in it may be a target. Then only one instruction of at least five bytes becomes the jump, or the
//! `syscall` itself becomes a short jump to dead bytes.

use super::super::{JUMP, SYSCALL, Site};
use super::Sweep;
use crate::frames::{Frames, Function};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

/// Returns all sites in the functions that `frames` describes, in the order of their addresses.
/// `code` begins at address `low`.
pub(crate) fn find(code: &[u8], low: u32, frames: &mut Frames) -> Vec<Site> {
    let mut found: Vec<Sweep> = Vec::new();
    let mut done = 0;
    for at in candidates(code) {
        let at = low + at as u32;
        if at < done {
            continue;
        }
        let Some(function) = frames.around(at) else {
            continue;
        };
        done = function.end;
        let from = function.start.checked_sub(low).map(|i| i as usize);
        let bytes = from.and_then(|i| code.get(i..(function.next - low) as usize));
        let sweep = bytes.and_then(|bytes| sweep(bytes, &function));
        found.extend(sweep.filter(|s| !s.syscalls.is_empty()));
    }
    mark_jumps(code, low, &mut found);
    for s in &mut found {
        let data: Vec<u32> = s
            .doubtful
            .iter()
            .copied()
            .filter(|&at| !s.is_target(at))
            .collect();
        s.syscalls.retain(|at| !data.contains(at));
    }
    found.iter().flat_map(Sweep::choose).collect()
}

/// Marks the targets of all jumps in the code, and of bytes that only look like a jump.
fn mark_jumps(code: &[u8], low: u32, found: &mut [Sweep]) {
    let (Some(first), Some(last)) = (found.first(), found.last()) else {
        return;
    };
    let range = u64::from(first.low)..u64::from(last.low) + last.code.len() as u64;
    for (i, w) in code.windows(6).enumerate() {
        // jmp with a 32-bit distance, and the conditional jumps.
        if w[1] != 0xe9 && (w[0] != 0x0f || w[1] & 0xf0 != 0x80) {
            continue;
        }
        let distance = i32::from_le_bytes([w[2], w[3], w[4], w[5]]);
        let to = (u64::from(low) + i as u64 + 6).wrapping_add_signed(distance.into());
        if range.contains(&to) {
            let behind = found.partition_point(|s| u64::from(s.low) <= to);
            found[behind - 1].mark(to);
        }
    }
}

/// Returns the offsets in `code` of the two bytes of a `syscall`.
fn candidates(code: &[u8]) -> impl Iterator<Item = usize> {
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let rest = code.get(from..)?;
            // SAFETY: pointer and length are those of `rest`.
            let hit = unsafe { libc::memchr(rest.as_ptr().cast(), SYSCALL[1].into(), rest.len()) };
            if hit.is_null() {
                return None;
            }
            let at = hit as usize - code.as_ptr() as usize;
            from = at + 1;
            if at > 0 && code[at - 1] == SYSCALL[0] {
                return Some(at - 1);
            }
        }
    })
}

/// Decodes one function and the bytes up to the next function; None if the function contains bytes
/// that aren't an instruction.
fn sweep<'a>(code: &'a [u8], function: &Function) -> Option<Sweep<'a>> {
    let low = function.start;
    let mut sweep = Sweep::new(code, low, true);
    let end = u64::from(function.end);
    let mut decoder = Decoder::with_ip(64, code, low.into(), DecoderOptions::NONE);
    let mut i = Instruction::default();
    sweep.mark(low.into());
    let mut dead: Option<u64> = None;
    // Whether the previous instruction is a doubtful `syscall`. A `syscall` is doubtful directly
    // behind an instruction that doesn't continue with the next one, or behind a doubtful
    // `syscall`: a real one has its number loaded first. Doubtful ones are data, unless something
    // jumps there.
    let mut behind_end = false;
    while decoder.can_decode() {
        let ip = decoder.ip();
        decoder.decode_out(&mut i);
        let padding = !i.is_invalid() && matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        if ip >= end {
            // Bytes after the function: dead as far as they are padding.
            dead = dead.or(Some(ip));
            if padding {
                continue;
            }
        } else if i.is_invalid() || i.next_ip() > end {
            return None;
        }
        let doubtful = dead.is_some() || behind_end;
        behind_end = doubtful && i.code() == Code::Syscall;
        if let Some(from) = dead.take_if(|_| !padding)
            && ip >= from + JUMP as u64
        {
            sweep.gaps.push((from as u32, ip as u32));
        }
        if ip >= end {
            break;
        }
        let at = (ip - u64::from(low)) as usize;
        sweep.starts[at / 64] |= 1 << (at % 64);
        if i.code() == Code::Syscall {
            sweep.syscalls.push(ip as u32);
            if doubtful {
                sweep.doubtful.push(ip as u32);
            }
        }
        if matches!(
            i.op0_kind(),
            OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16
        ) {
            sweep.mark(i.near_branch_target());
        }
        if i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand() {
            sweep.mark(i.ip_rel_memory_address());
        }
        sweep.open |= i.flow_control() == FlowControl::IndirectBranch;
        if matches!(
            i.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        ) || matches!(i.mnemonic(), Mnemonic::Hlt | Mnemonic::Ud2)
        {
            dead = Some(i.next_ip());
        }
    }
    if let Some(from) = dead
        && decoder.ip() >= from + JUMP as u64
    {
        sweep.gaps.push((from as u32, decoder.ip() as u32));
    }
    Some(sweep)
}
