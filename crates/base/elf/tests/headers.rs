//! Test with files that begin like a program, followed by random bytes: reading their headers
//! doesn't panic and doesn't allocate much memory.

use forebay_elf::{Elf, Source};
use forebay_fuzz::{Watched, largest_allocation};
use rustix::io::Errno;

#[global_allocator]
static ALLOCATOR: Watched = Watched;

struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn read_at(&self, to: &mut [u8], offset: u64) -> Result<usize, Errno> {
        // Like the kernel, refuses an offset that is negative as a signed number.
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)? as usize;
        let from = self.0.get(offset..).unwrap_or(&[]);
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }
}

#[test]
fn any_file_is_a_program_or_none() {
    let whole = std::fs::read("/bin/true").unwrap();
    let sound = Elf::read(&Bytes(whole.clone())).expect("a program");
    assert!(sound.interpreter.is_some() && !sound.texts.is_empty());
    let dynamic = sound.segments.iter().find(|s| s.kind == 2).unwrap().offset as usize;
    let mut read = 0u64;
    forebay_fuzz::run("headers of programs", |r| {
        let mut file = whole.clone();
        for _ in 0..1 + r.below(6) {
            // A byte of the header, the program headers, or the dynamic section.
            let at = match r.below(3) {
                0 => r.below(64),
                1 => 64 + r.below(56 * 14),
                _ => dynamic + r.below(512),
            };
            let (value, width) = (r.edge().to_le_bytes(), *r.one_of(&[1, 2, 4, 8]));
            file[at..at + width].copy_from_slice(&value[..width]);
        }
        if r.once_in(10) {
            file.truncate(r.below(file.len()));
        }
        let file = Bytes(file);
        let (elf, largest) = largest_allocation(|| Elf::read(&file));
        assert!(largest <= 8 << 20, "{largest} bytes of memory");
        if let Some(elf) = elf {
            read += 1;
            elf.loaded().count();
        }
    });
    assert!(read > 0, "nothing was read at all");
}
