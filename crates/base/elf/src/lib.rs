//! Reads the headers of an ELF program: its interpreter, and the directories in which the
//! interpreter searches for libraries. For a file that this crate doesn't understand, nothing is
//! returned: the caller leaves the file to the kernel.

#![warn(missing_docs)]

use rustix::io::Errno;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// Maximum size of the part of a dynamic section that is read. Bytes.
const DYNAMIC_MAX: u64 = 64 << 10;
/// Maximum length of a text in a dynamic section. Bytes.
const TEXT_MAX: usize = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// A file to read from.
pub trait Source {
    /// Reads bytes from `offset` on into `to`. Reads fewer than `to` has space for only at the end
    /// of the file.
    ///
    /// # Errors
    /// EIO and other errors of the file.
    fn read_at(&self, to: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// Fills all of `to`, or returns None.
    fn exact(&self, to: &mut [u8], offset: u64) -> Option<()> {
        (self.read_at(to, offset) == Ok(to.len())).then_some(())
    }
}

impl Source for std::fs::File {
    fn read_at(&self, to: &mut [u8], offset: u64) -> Result<usize, Errno> {
        rustix::io::pread(self, to, offset)
    }
}

/// A program header.
#[derive(Clone, Copy)]
pub struct Segment {
    /// Offset of the header in the file. Bytes.
    pub at: u64,
    /// The type: PT_LOAD and so on.
    pub kind: u32,
    /// Offset of the segment in the file. Bytes.
    pub offset: u64,
    /// Address of the segment in memory.
    pub address: u64,
    /// Size in the file. Bytes.
    pub file_size: u64,
    /// Size in memory. Bytes.
    pub memory_size: u64,
}

/// A text of the dynamic section that tells the loader where libraries are.
pub struct DynamicText {
    /// Offset in the file of the value in the dynamic section that refers to the text. Bytes.
    pub at: u64,
    /// The text.
    pub text: Vec<u8>,
    /// Whether the text is the name of one library, not a list of directories.
    pub is_name: bool,
}

/// The headers of a program.
pub struct Elf {
    /// All program headers.
    pub segments: Vec<Segment>,
    /// The segment PT_INTERP and its text, for programs with a loader.
    pub interpreter: Option<(Segment, Vec<u8>)>,
    /// The texts of RPATH and RUNPATH, and the names of the needed libraries.
    pub texts: Vec<DynamicText>,
    /// Address of the string table.
    pub strings: u64,
    /// The processor architecture (`e_machine`).
    pub machine: u16,
}

/// `e_machine` of x86-64.
const EM_X86_64: u16 = 62;

fn word16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn word32(b: &[u8], at: usize) -> u32 {
    u32::from(word16(b, at)) | u32::from(word16(b, at + 2)) << 16
}

fn word64(b: &[u8], at: usize) -> u64 {
    u64::from(word32(b, at)) | u64::from(word32(b, at + 4)) << 32
}

impl Elf {
    /// Reads a program's headers; None if it isn't a 64-bit little-endian ELF program.
    pub fn read(file: &dyn Source) -> Option<Elf> {
        let mut head = [0; HEADER];
        file.exact(&mut head, 0)?;
        // 64 bits, little-endian; an executable or a shared object.
        if head[..6] != *b"\x7fELF\x02\x01" || !matches!(word16(&head, 16), 2 | 3) {
            return None;
        }
        let (table, size) = (word64(&head, 32), word16(&head, 54));
        if usize::from(size) != PROGRAM_HEADER {
            return None;
        }
        let mut headers = vec![0; usize::from(word16(&head, 56)) * PROGRAM_HEADER];
        file.exact(&mut headers, table)?;
        let segments: Vec<Segment> = headers
            .chunks_exact(PROGRAM_HEADER)
            .enumerate()
            .map(|(i, h)| Segment {
                at: table + (i * PROGRAM_HEADER) as u64,
                kind: word32(h, 0),
                offset: word64(h, 8),
                address: word64(h, 16),
                file_size: word64(h, 32),
                memory_size: word64(h, 40),
            })
            .collect();
        let mut elf = Elf {
            segments,
            interpreter: None,
            texts: Vec::new(),
            strings: 0,
            machine: word16(&head, 18),
        };
        elf.read_interpreter(file)?;
        if elf.interpreter.is_some() {
            elf.read_dynamic(file)?;
        }
        Some(elf)
    }

    fn segment(&self, kind: u32) -> Option<Segment> {
        self.segments.iter().copied().find(|s| s.kind == kind)
    }

    fn read_interpreter(&mut self, file: &dyn Source) -> Option<()> {
        let Some(segment) = self.segment(PT_INTERP) else {
            return Some(());
        };
        let mut path = vec![0; usize::try_from(segment.file_size).ok()?.min(TEXT_MAX)];
        file.exact(&mut path, segment.offset)?;
        path.truncate(path.iter().position(|&b| b == 0)?);
        self.interpreter = Some((segment, path));
        Some(())
    }

    fn read_dynamic(&mut self, file: &dyn Source) -> Option<()> {
        let Some(dynamic) = self.segment(PT_DYNAMIC) else {
            return Some(());
        };
        let mut entries = vec![0; dynamic.file_size.min(DYNAMIC_MAX) as usize & !15];
        file.exact(&mut entries, dynamic.offset)?;
        let entries: Vec<(u64, u64, u64)> = entries
            .chunks_exact(16)
            .enumerate()
            .map(|(i, e)| {
                let at = dynamic.offset + i as u64 * 16 + 8;
                (word64(e, 0), word64(e, 8), at)
            })
            .take_while(|e| e.0 != 0)
            .collect();
        let strings = entries.iter().find(|e| e.0 == DT_STRTAB)?.1;
        let table = self.file_offset(strings)?;
        for (tag, value, at) in entries {
            if !matches!(tag, DT_NEEDED | DT_RPATH | DT_RUNPATH) {
                continue;
            }
            let mut text = vec![0; if tag == DT_NEEDED { 256 } else { TEXT_MAX }];
            let n = file.read_at(&mut text, table + value).ok()?;
            text.truncate(text[..n].iter().position(|&b| b == 0).unwrap_or(n));
            self.texts.push(DynamicText {
                at,
                text,
                is_name: tag == DT_NEEDED,
            });
        }
        self.strings = strings;
        Some(())
    }

    /// Returns the offset in the file of an address. Bytes.
    fn file_offset(&self, address: u64) -> Option<u64> {
        let loaded = self.segments.iter().filter(|s| s.kind == PT_LOAD);
        loaded
            .filter(|s| address >= s.address && address - s.address < s.file_size)
            .map(|s| s.offset + (address - s.address))
            .next()
    }

    /// Whether the program is for x86-64.
    pub fn is_native(&self) -> bool {
        self.machine == EM_X86_64
    }

    /// Whether the program makes its system calls itself, without libc, because it is linked
    /// statically, or made by Go's compiler. An interception of libc's functions doesn't see such
    /// calls.
    pub fn calls_directly(&self, file: &dyn Source) -> bool {
        const GO: &[u8] = b"Go\0\0";
        let mut notes = self.segments.iter().filter(|s| s.kind == PT_NOTE);
        self.interpreter.is_none()
            || notes.any(|s| {
                let mut text = [0; 512];
                let n = (s.file_size as usize).min(text.len());
                // A note has a header of 12 bytes; its name follows.
                file.exact(&mut text[..n], s.offset).is_some()
                    && text[..n].chunks_exact(4).skip(3).any(|name| name == GO)
            })
    }

    /// Whether the program needs a library whose name begins with `name`.
    pub fn needs(&self, name: &[u8]) -> bool {
        self.texts
            .iter()
            .any(|t| t.is_name && t.text.starts_with(name))
    }

    /// Returns the segments that are loaded into memory.
    pub fn loaded(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|s| s.kind == PT_LOAD)
    }
}
