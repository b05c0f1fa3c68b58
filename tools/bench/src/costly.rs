//! Workers that measure costs for programs that never touch the pool. They do PASSES pieces of
//! COUNT operations each; the result is that of the median piece.

use crate::sys::{self, Name};
use crate::worker::Worker;

/// Times pieces of operations. Reports as if all pieces had taken as long as the median piece.
fn pieces(w: &Worker, mut operation: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    // The first operation warms the caches.
    operation()?;
    w.start()?;
    let mut times = Vec::with_capacity(w.passes);
    for _ in 0..w.passes {
        let start = sys::now();
        for _ in 0..w.count {
            operation()?;
        }
        times.push(sys::now() - start);
    }
    times.sort_unstable();
    w.report(w.count, times[times.len() / 2] as f64 / 1e9)
}

pub fn spawn(w: &Worker) -> Result<(), String> {
    let program = Name::of("/bin/true")?;
    pieces(w, || sys::spawn(&program))
}

/// Worker: runs a shell script of short programs, in the worker's directory.
pub fn script(w: &Worker) -> Result<(), String> {
    const LINE: &str = "/bin/true; /bin/true | /bin/true; x=$(/bin/true); ";
    let (shell, option) = (Name::of("/bin/sh")?, Name::of("-c")?);
    let text = Name::of(&LINE.repeat(5))?;
    std::fs::create_dir_all(&w.directory).map_err(|e| format!("{}: {e}", w.directory))?;
    std::env::set_current_dir(&w.directory).map_err(|e| format!("{}: {e}", w.directory))?;
    pieces(w, || sys::spawn_with(&shell, &[&option, &text]))
}

/// Worker: makes three system calls; the report counts each of them.
pub fn open_read_close(w: &Worker) -> Result<(), String> {
    let name = Name::of("/etc/hostname")?;
    let size = sys::stat(&name)? as usize;
    let mut buffer = vec![0; size.max(1)];
    pieces(w, || {
        let fd = sys::open(&name, libc::O_RDONLY)?;
        sys::read(fd, &mut buffer, size)?;
        sys::close(fd)
    })
}

pub fn pread(w: &Worker) -> Result<(), String> {
    let name = Name::of(&format!("{}/w-{}", w.directory, std::process::id()))?;
    let fd = sys::open(&name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR)?;
    sys::write(fd, &[1; 16])?;
    let mut buffer = [0; 16];
    pieces(w, || sys::pread(fd, &mut buffer, 0))?;
    sys::close(fd)?;
    sys::unlink(&name)
}

pub fn stat(w: &Worker) -> Result<(), String> {
    let name = Name::of("/tmp")?;
    pieces(w, || sys::stat(&name).map(drop))
}

pub fn getppid(w: &Worker) -> Result<(), String> {
    pieces(w, || {
        std::hint::black_box(sys::getppid());
        Ok(())
    })
}
