//! The memory file from which a program of the pool is executed.
//!
//! The memory file is a copy of the program's file, changed only where the kernel or the loader
//! would otherwise search the wrong directory. `$ORIGIN` in the copy's search paths becomes the
//! program's directory in the pool: the copy has no directory. An interpreter in the pool is
//! replaced by a memory file, too.

use forebay_elf::{Elf, Segment, Source};
use forebay_posix::Errno;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::ffi::CStr;

const PAGE: u64 = 4096;
const PROGRAM_HEADER: usize = 56;
const PT_LOAD: u32 = 1;
const PT_PHDR: u32 = 6;
const PF_R: u32 = 4;

/// Copies `file` into an executable memory file.
///
/// # Errors
/// ENOMEM, EMFILE; EFBIG beyond RLIMIT_FSIZE; the errors of reading.
pub fn copy(file: &dyn Source, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC) {
        // On kernels before 6.3 all memory files are executable.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    let mut buffer = vec![0u8; 256 << 10];
    let mut at = 0;
    loop {
        let n = file.read_at(&mut buffer, at)?;
        if n == 0 {
            return Ok(fd);
        }
        write(&fd, &buffer[..n], at)?;
        at += n as u64;
    }
}

fn write(fd: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    // Beyond RLIMIT_FSIZE, the kernel would send SIGXFSZ.
    forebay_media::may_grow(at + bytes.len() as u64)?;
    while !bytes.is_empty() {
        let n = rustix::io::pwrite(fd, bytes, at)?;
        bytes = &bytes[n..];
        at += n as u64;
    }
    Ok(())
}

/// Makes the kernel take the interpreter from the descriptor `interpreter`. The descriptor must
/// stay open up to the exec. In the program's memory, the loader still finds the original path.
///
/// # Errors
/// Those of writing.
pub fn set_interpreter(
    image: &OwnedFd,
    header: &Segment,
    interpreter: &OwnedFd,
) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}\0", interpreter.as_raw_fd());
    let end = rustix::fs::fstat(image)?.st_size as u64;
    write(image, path.as_bytes(), end)?;
    // The fields of the interpreter's program header: offset in the file, and size in the file.
    write(image, &end.to_le_bytes(), header.at + 8)?;
    write(image, &(path.len() as u64).to_le_bytes(), header.at + 32)
}

/// Returns `text` with `$ORIGIN` replaced by `origin`; None if it has no `$ORIGIN`.
fn expand(text: &[u8], origin: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = text;
    let mut found = false;
    while let Some((&first, tail)) = rest.split_first() {
        let after = rest.strip_prefix(b"${ORIGIN}").or_else(|| {
            let after = rest.strip_prefix(b"$ORIGIN")?;
            let ends = after
                .first()
                .is_none_or(|b| !b.is_ascii_alphanumeric() && *b != b'_');
            ends.then_some(after)
        });
        match after {
            Some(after) => {
                out.extend_from_slice(origin);
                rest = after;
                found = true;
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    found.then_some(out)
}

/// Replaces `$ORIGIN` in the program's search paths. The new texts are appended as one more
/// segment, together with the table of segments. The table gets one more entry.
///
/// # Errors
/// Those of reading and writing.
pub fn set_origin(image: &OwnedFd, elf: &Elf, origin: &[u8]) -> Result<(), Errno> {
    let new: Vec<(u64, Vec<u8>)> = elf
        .texts
        .iter()
        .filter_map(|t| Some((t.at, expand(&t.text, origin)?)))
        .collect();
    let (Some(first), false) = (elf.loaded().next(), new.is_empty()) else {
        return Ok(());
    };
    let size = rustix::fs::fstat(image)?.st_size as u64;
    let end = elf
        .loaded()
        .map(|s| s.address.saturating_add(s.memory_size));
    let end = end.max().unwrap_or(0);
    // The new segment has the same distance between address and offset as the first one: older
    // kernels rely on that to find the program headers.
    let distance = first.address.wrapping_sub(first.offset);
    let address = end.max(size.wrapping_add(distance));
    let address = address
        .checked_next_multiple_of(PAGE)
        .ok_or(Errno::NOEXEC)?;
    let offset = address.wrapping_sub(distance);

    let count = elf.segments.len();
    let mut block = vec![0; count * PROGRAM_HEADER];
    if rustix::io::pread(image, &mut block, elf.segments[0].at)? < block.len() {
        return Err(Errno::NOEXEC);
    }
    let table_len = ((count + 1) * PROGRAM_HEADER) as u64;
    let mut texts = Vec::new();
    for (at, text) in &new {
        let place = address + table_len + texts.len() as u64;
        write(image, &place.wrapping_sub(elf.strings).to_le_bytes(), *at)?;
        texts.extend_from_slice(text);
        texts.push(0);
    }
    let len = table_len + texts.len() as u64;
    let header = |kind: u32, len: u64, align: u64| {
        let mut h = Vec::with_capacity(PROGRAM_HEADER);
        h.extend_from_slice(&kind.to_le_bytes());
        h.extend_from_slice(&PF_R.to_le_bytes());
        for word in [offset, address, address, len, len, align] {
            h.extend_from_slice(&word.to_le_bytes());
        }
        h
    };
    // Mapped segments are in the order of their addresses: the new one is the last.
    let behind = elf.segments.iter().rposition(|s| s.kind == PT_LOAD);
    let behind = behind.map_or(count, |i| i + 1) * PROGRAM_HEADER;
    block.splice(behind..behind, header(PT_LOAD, len, PAGE));
    if let Some(i) = elf.segments.iter().position(|s| s.kind == PT_PHDR) {
        let at = i * PROGRAM_HEADER;
        block.splice(at..at + PROGRAM_HEADER, header(PT_PHDR, table_len, 8));
    }
    block.extend_from_slice(&texts);
    write(image, &block, offset)?;
    // The ELF header's fields: offset of the table, and number of its entries.
    write(image, &offset.to_le_bytes(), 32)?;
    write(image, &((count + 1) as u16).to_le_bytes(), 56)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_replaced_as_the_loader_does() {
        let e = |t: &str| expand(t.as_bytes(), b"/fb/x").map(|v| String::from_utf8(v).unwrap());
        assert_eq!(e("$ORIGIN/../lib").as_deref(), Some("/fb/x/../lib"));
        assert_eq!(e("/a:${ORIGIN}:$ORIGIN").as_deref(), Some("/a:/fb/x:/fb/x"));
        assert_eq!(e("/a:$ORIGINAL/b"), None);
        assert_eq!(e("$LIB/x"), None);
    }
}
