# A program of Rust's crate rustix, which makes its system calls itself, and a library of it, loaded by Python.
# needs: cargo rustc gcc python3
# timeout: 150
# media: memory
source "$CASES/../lib.sh"
unset CARGO_TARGET_DIR
home=$(getent passwd "$CASE_UID" | cut -d: -f6)
unset ${!CARGO_*} ${!RUSTFLAGS*}
# The crate is one that this repository is built with: it is there.
export RUSTUP_HOME=${RUSTUP_HOME:-$home/.rustup} CARGO_HOME=${CARGO_HOME:-$home/.cargo} CARGO_NET_OFFLINE=true CARGO_TERM_QUIET=true CARGO_BUILD_JOBS=2
mkdir -p "$OUTER/demo/src"; cd "$OUTER/demo"
cp "$CASES/../../../Cargo.lock" .
cat > Cargo.toml <<'T'
[package]
name = "demo"
version = "0.1.0"
edition = "2024"
[lib]
crate-type = ["cdylib", "rlib"]
[dependencies]
rustix = { version = "1.1", features = ["fs", "mm", "process"] }
[workspace]
T
cat > src/lib.rs <<'R'
use rustix::fs::{self, AtFlags, Mode, OFlags, CWD};
/// What a temporary file goes through until it is in its place; then what is there.
pub fn place(top: &str) -> rustix::io::Result<String> {
    fs::mkdir(top, Mode::from_raw_mode(0o755))?;
    let dir = fs::open(top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = fs::openat(&dir, ".tmp", flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::write(&file, b"the first line\nthe second\n")?;
    rustix::io::pwrite(&file, b"THE", 15)?;
    fs::fsync(&file)?;
    let size = fs::fstat(&file)?.st_size;
    fs::renameat(&dir, ".tmp", &dir, "placed")?;
    fs::symlinkat("placed", &dir, "link")?;
    let mut text = [0u8; 64];
    let n = rustix::io::pread(&file, &mut text[..], 4)?;
    let gone = fs::statat(CWD, format!("{top}/.tmp"), AtFlags::empty()).map(|s| s.st_size);
    let mut names: Vec<String> = fs::Dir::read_from(&dir)?.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let link = fs::readlinkat(&dir, "link", Vec::new())?;
    fs::flock(&file, fs::FlockOperation::NonBlockingLockExclusive)?;
    fs::unlinkat(&dir, "link", AtFlags::empty())?;
    Ok(format!("{size} {n} {:?} {gone:?} {names:?} {link:?}", std::str::from_utf8(&text[..n])))
}
#[unsafe(no_mangle)]
pub extern "C" fn place_there(top: *const std::ffi::c_char) -> i32 {
    let top = unsafe { std::ffi::CStr::from_ptr(top) };
    match place(top.to_str().unwrap()) {
        Ok(text) => println!("{text}"),
        Err(e) => println!("{e}"),
    }
    // A panic unwinds through all that.
    std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(7))).is_err() as i32
}
R
cat > src/main.rs <<'R'
fn main() {
    println!("{:?}", demo::place(&std::env::args().nth(1).unwrap()));
    let top = std::env::args().nth(1).unwrap() + "/";
    let threads: Vec<_> = (0..4).map(|n| { let top = format!("{top}{n}"); std::thread::spawn(move || demo::place(&top)) }).collect();
    for t in threads { println!("{:?}", t.join().unwrap()); }
}
R
cargo build --release
cp target/release/demo "$OUTER/program"; cp target/release/libdemo.so "$OUTER"; cd "$WORK"; rm -rf "$OUTER/demo"
section a program
"$OUTER/program" "$WORK/a"; ls -lA --time-style=+ a a/0 | awk '{print $1, $NF}'; cat a/placed a/3/placed
section a library
for library in "$OUTER/libdemo.so" ./libdemo.so; do
  [ -e "$library" ] || cp "$OUTER/libdemo.so" .
  python3 -c 'import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).place_there(sys.argv[2].encode()))' "$library" "by-$((++n))"
done
cat by-1/placed by-2/placed
section stored here
cp "$OUTER/program" .; ./program here
rm -f "$OUTER/program" "$OUTER/libdemo.so" program libdemo.so
